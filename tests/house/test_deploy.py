"""The manifest is one that Kubernetes' own schema takes."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"
OBJECTS = list(yaml.safe_load_all(MANIFEST.read_text()))


@pytest.mark.parametrize("found", OBJECTS, ids=lambda found: str(found["kind"]))
def test_an_object_of_the_manifest_follows_the_schema(found: dict[str, object]) -> None:
    kubernetes_validate.validate(found, "1.32", strict=True)


def test_a_word_the_schema_does_not_know_is_refused() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OBJECTS[0], "meta": {}}, "1.32", strict=True)
