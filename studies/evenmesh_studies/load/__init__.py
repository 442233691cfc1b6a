"""Test a mesh under load: send calls, measure them, find the knee, and plan capacity.

``arrivals``: times of calls · ``operations``: the calls · ``inputs``: their questions · ``loops``: open and
closed loops · ``clients``: one or several calling processes · ``resource_monitor``: who used the processors ·
``step``: one load and its measurements · ``session``: the steps of a run, journalled ·
``knee``: measured capacity · ``prediction``: queueing models · ``capacity``: hardware for a load ·
``comparison``: two runs · ``pareto``: Pareto front · ``tables``, ``figures``, ``report``: output.
"""
