"""Online IUM: a process of its own that trains each agent's own parameters on what that agent says.

Algorithm 2 of iterative-utility-maximization.txt (section 4.2): after every b queries of an agent, its
parameters are trained on all of its feedback so far. Here a part of the newest is held back, and what comes
of it serves only if it is not worse on that part than what serves now.
"""
