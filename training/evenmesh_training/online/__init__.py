"""Online IUM: a process of its own trains each agent's own parameters on that agent's feedback.

Algorithm 2 of Salemi and Zamani (Iterative Utility Maximization, section 4.2): after every b queries of an
agent, train its parameters on all its feedback so far. Here a part of the newest feedback is held out, and
the trained candidate serves only if it is not worse on that part than what serves now.
"""
