"""Load tests of a mesh: what arrives when, what became of it, where the knee is, and what a load would need.

``arrivals`` when calls are due · ``operations`` what is called · ``material`` what it is called with ·
``load`` open and closed loops · ``clients`` one process that calls, or several · ``witness`` who computed
meanwhile · ``step`` one load and what was measured under it · ``session`` steps one after the other, each
written as it ends · ``knee`` how far it goes · ``prediction`` how far it should go · ``capacity`` what a load
needs · ``comparison`` two runs · ``front`` what nothing beats · ``tables``, ``figures``, ``report`` how it is
shown.
"""
