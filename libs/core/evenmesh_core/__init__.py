"""The formulas of evenmesh's five papers as functions from NumPy arrays to NumPy arrays.

No gRPC, no input or output, no logging, no global state. One noun per module:

``plackett_luce`` stochastic rankings · ``exposure`` expected exposure · ``utility`` expected utility and
curves · ``text_metrics`` scores of a text against references · ``ranking_metrics`` nDCG and friends ·
``ranking`` deterministic top-k · ``fusion`` several rankings into one · ``ensemble`` votes of several
retrievers · ``group_fairness`` rankings and conversations against a target distribution · ``means`` means
over queries whose value may be undefined · ``intervals`` bootstrap intervals over queries · ``significance``
paired tests of two systems · ``queueing`` waiting times of a busy service · ``seeds`` random generators ·
``arrays`` checks of arguments · ``errors`` the error of a bad argument.

Conventions: indices are 0-based, ranks in formulas 1-based, the best item comes first, ties break by
ascending item id, an undefined value is ``nan``, and bad input raises ``evenmesh_core.errors.InvalidInput``.

The papers, by the names that docstrings use: Kim & Diaz 2025 (arXiv:2409.11598), Li et al. 2024
(arXiv:2405.20680), Sakai 2023 (doi:10.20736/0002001350), Yu et al. 2024 (arXiv:2407.02485), and Salemi &
Zamani 2025 (arXiv:2410.09942).
"""
