"""Parts of planner, kernels and connectors that the builder needs: loaded with the first step of a stream, not before."""

from __future__ import annotations

from krishiv_py.connectors import fit as fit
from krishiv_py.connectors.tables import changes as changes
from krishiv_py.kernels.columns import evaluate as evaluate
from krishiv_py.kernels.columns import steps as steps
from krishiv_py.kernels.joins import lookup as lookup
from krishiv_py.kernels.patterns import program as program
from krishiv_py.kernels.patterns import values as values
from krishiv_py.planner import check as check
from krishiv_py.planner import cut as cut
from krishiv_py.planner import explain as explain
from krishiv_py.planner import hidden as hidden
from krishiv_py.planner import physical as physical
