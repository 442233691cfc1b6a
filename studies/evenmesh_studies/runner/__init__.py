"""Run a study over a mesh: check it first, journal every unit, resume, divide into shards, report."""

from evenmesh_studies.runner.runner import Perform, Plan, Progress, Result, StudyRunner, Unit
from evenmesh_studies.runner.shards import WHOLE, Shard, Stored, stem

__all__ = ["WHOLE", "Perform", "Plan", "Progress", "Result", "Shard", "Stored", "StudyRunner", "Unit", "stem"]
