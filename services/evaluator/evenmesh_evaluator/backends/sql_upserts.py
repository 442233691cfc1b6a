"""The INSERT statements of the SQL store. Building one costs as much as running it, so each is built once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, case, or_

from evenmesh_evaluator.backends import sql_providers
from evenmesh_evaluator.backends.sql_tables import CONVERSATIONS, OBSERVATIONS, PEAKS, SCOPES, USAGE
from evenmesh_evaluator.domain import CONVERSATION
from evenmesh_kit.storage.sql import SqlDatabase


class Upserts:
    """The statements in the dialect of a database.

    Args:
        database: where they will run.

    Attributes:
        observations: inserts new observations; returns their tenants and ids.
        peaks: raises the largest utilities of queries; returns their ids and keys.
        scopes: counts observations and segments; returns keys, ids and last segment numbers of the scopes.
        conversations: replaces the last observations of conversations by later ones.
        usage: adds to what tenants keep; returns what they keep then.
        providers: adds to days of providers.
    """

    def __init__(self, database: SqlDatabase) -> None:
        self.observations = _observations(database)
        self.peaks = _peaks(database)
        self.scopes = _scopes(database)
        self.conversations = _conversations(database)
        self.usage = _usage(database)
        self.providers = sql_providers.upsert(database)


def _observations(database: SqlDatabase) -> Any:
    statement = database.insert(OBSERVATIONS).on_conflict_do_nothing(index_elements=["tenant", "id"])
    return statement.returning(OBSERVATIONS.c.tenant, OBSERVATIONS.c.id)


def _peaks(database: SqlDatabase) -> Any:
    statement = database.insert(PEAKS)
    new, old = statement.excluded, PEAKS.c
    key = ["tenant", "query_id", "collection", "generator", "metric"]
    return statement.on_conflict_do_update(
        index_elements=key,
        set_={"utility": case((new.utility > old.utility, new.utility), else_=old.utility)},
    ).returning(old.id, *(old[name] for name in key))


def _scopes(database: SqlDatabase) -> Any:
    statement = database.insert(SCOPES)
    new, old = statement.excluded, SCOPES.c
    key = ["tenant", "kind", "key"]
    return statement.on_conflict_do_update(
        index_elements=key,
        set_={
            "num_observations": old.num_observations + new.num_observations,
            "started_at_us": case(
                (new.started_at_us < old.started_at_us, new.started_at_us), else_=old.started_at_us
            ),
            "updated_at_us": case(
                (new.updated_at_us > old.updated_at_us, new.updated_at_us), else_=old.updated_at_us
            ),
            "num_segments": old.num_segments + new.num_segments,
        },
    ).returning(*(old[name] for name in (*key, "id", "num_segments")))


def _conversations(database: SqlDatabase) -> Any:
    statement = database.insert(CONVERSATIONS)
    new, old = statement.excluded, CONVERSATIONS.c
    replaced = ["configuration_id", "observed_at_us", "observation_id", *CONVERSATION]
    return statement.on_conflict_do_update(
        index_elements=["tenant", "run_id", "conversation_id"],
        set_={name: new[name] for name in replaced},
        where=or_(
            new.observed_at_us > old.observed_at_us,
            and_(new.observed_at_us == old.observed_at_us, new.observation_id > old.observation_id),
        ),
    )


def _usage(database: SqlDatabase) -> Any:
    statement = database.insert(USAGE)
    new, old = statement.excluded, USAGE.c
    counted = [column.name for column in USAGE.columns if not column.primary_key]
    return statement.on_conflict_do_update(
        index_elements=["tenant"], set_={name: old[name] + new[name] for name in counted}
    ).returning(USAGE)
