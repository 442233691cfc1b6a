"""The science of ragmesh: formulas of the five papers as functions from NumPy arrays to NumPy arrays.

No gRPC, no input or output, no logging, no global state. One noun per module:

``plackett_luce`` stochastic rankings · ``exposure`` expected exposure · ``utility`` expected utility and
curves · ``text_metrics`` scores of a text against references · ``ranking_metrics`` nDCG and friends ·
``ranking`` deterministic top-k · ``fusion`` several rankings into one · ``ensemble`` votes of several
retrievers · ``group_fairness`` rankings and conversations against a target distribution · ``means`` means
over queries whose value may be undefined · ``intervals`` bootstrap intervals over queries · ``significance``
paired tests of two systems · ``queueing`` waits where a service is busy · ``seeds`` where randomness comes
from · ``arrays`` the checks at the door · ``errors`` what a bad argument raises.

Conventions: indices are 0-based, ranks in formulas 1-based, the best item comes first, ties break by
ascending item id, an undefined value is ``nan``, and bad input raises :class:`ragcore.errors.InvalidInput`.
"""
