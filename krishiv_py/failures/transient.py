"""Tells an error that may pass by itself from one that a repetition meets again: one rule for all sources, sinks and stores.

What is away comes back: a server that does not answer, a folder that is not mounted, a checkpoint whose holder is ending. What
refuses stays: a wrong password, a plan that does not fit, a line that cannot be read. An error of ours says it where it is
raised; of others the type, the number of the operating system or the words of a server say it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

Verdict: TypeAlias = Literal["transient", "lasting", "unknown"]
"""Says what a repetition without any change can do: it may help, it cannot, or nobody knows."""
_LONGEST_CHAIN: Final = 20
_NUMBERS: Final = {
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH),
    *(errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.ESTALE),
    *(errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENODEV, errno.ENXIO, errno.ENOSPC, errno.EDQUOT),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EREMOTEIO),
}
_TYPES: Final = (ConnectionError, TimeoutError, BlockingIOError)
_NAMES: Final = {
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "Timeout",
    "TransportError",
    "ServiceUnavailable",
    "gaierror",
}
"""Classes of clients of the web, which are in no module that can be imported here."""
_STORES: Final = ("deltalake", "pyiceberg", "obstore", "botocore", "google")
"""Packages whose errors have no number: their words are read."""
_LASTING: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, NameError, AssertionError, NotImplementedError),
    *(ImportError, SyntaxError, RecursionError),
)
_REFUSED: Final = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|Forbidden|"
    r"Permission denied|PERMISSION_DENIED|UNAUTHENTICATED|AccessControlException"
)
_AWAY: Final = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|curlCode|Could not connect|"
    r"EndpointConnectionError|error sending request|[Tt]im(?:ed )?out|[Cc]onnection (?:refused|reset|closed)|No answer|"
    r"No space left|[Uu]nreachable|resolve host|Name or service|temporarily|NotReplicatedYetException|RetriableException|"
    r"StandbyException|SafeModeException|[Ss]afe mode|LeaseExpiredException|no datanode has reported|HTTP (?:429|5\d\d)|"
    r"\b50[0234]\b|UNAVAILABLE|DEADLINE_EXCEEDED|this may pass"
)
_OF_A_PROGRAM: Final = re.compile(
    r"\b(?:Value|Type|Lookup|Key|Index|Arithmetic|ZeroDivision|Overflow|Attribute|Name|Assertion|NotImplemented|Import|"
    r"ModuleNotFound|Syntax|Recursion)Error: "
)
PASSES: Final = " (this may pass)"
"""Ends the text of a transient error whose words do not say so, where only the text reaches another process."""
_PASSING_STATES: Final = ("08", "57", "53", "40", "58", "55P03", "25006")
"""Classes and codes of SQLSTATE: no connection, an operator's hand, no resources, rolled back, a failed system, a lock that is
held, a standby."""


def verdict(problem: BaseException) -> Verdict:
    """Return what a repetition without any change can do about an error.

    Examples
    --------
    >>> verdict(ConnectionRefusedError()), verdict(ZeroDivisionError()), verdict(RuntimeError("of a program"))
    ('transient', 'lasting', 'unknown')
    """
    last, ours = problem, False
    for each in _chain(problem):
        last, ours = each, hasattr(each, "_verdict")
        said: Verdict | None = getattr(each, "_verdict", None) or _of_others(each)
        if said is not None:
            return said
    return "lasting" if ours or isinstance(last, _LASTING) else "unknown"


def _chain(problem: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, one after the other."""
    each: BaseException | None = problem
    for _ in range(_LONGEST_CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _of_others(problem: BaseException) -> Verdict | None:
    """Return what an error that is not of ours says by itself; None where its cause may say more."""
    state = getattr(problem, "sqlstate", "")
    if state is None or (isinstance(state, str) and state.startswith(_PASSING_STATES)):  # None: a server that did not answer
        return "transient"
    if isinstance(problem, _TYPES) or not _NAMES.isdisjoint(kind.__name__ for kind in type(problem).__mro__):
        return "transient"
    of_a_store = type(problem).__module__.partition(".")[0] in _STORES
    if not isinstance(problem, OSError) and not of_a_store:
        return None
    if isinstance(problem, OSError) and problem.errno is not None:
        return "transient" if problem.errno in _NUMBERS else None
    text = str(problem)
    if _REFUSED.search(text):
        return "lasting"
    return "transient" if _AWAY.search(text) else None


def verdict_of_text(text: str) -> Verdict:
    """Return what the words of an error of another process say: that something is away, or that nobody knows."""
    if _OF_A_PROGRAM.search(text) and PASSES not in text:
        return "unknown"
    return "transient" if _AWAY.search(text) and not _REFUSED.search(text) else "unknown"
