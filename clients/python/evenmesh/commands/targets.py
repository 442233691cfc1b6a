"""Read fairness targets of conversations from the command line."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from evenmesh.commands.failure import USAGE, CommandError

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh.types.conversation import GroupTarget

HELP: Final = (
    "Fairness target: ATTRIBUTE (equal shares for its groups), ATTRIBUTE=collection (their shares of the "
    "collection), or ATTRIBUTE=A:2,B:1 (these shares; also as JSON). Add @rnod or @nmd if groups have an "
    "order. May be repeated."
)
_SPEC: Final = re.compile(r"(?s)(\w+)(?:=(.*?))?(?:@(jsd|rnod|nmd))?")


def read_target(text: str, client: "Client", collection: str | None) -> "GroupTarget":
    """Return the target that a text describes; for the groups of a collection, read all its passages.

    Raises:
        CommandError: the text is not a target, or the collection has fewer than two groups.
        MeshError: the collection cannot be read.
    """
    from evenmesh.types.conversation import GroupTarget

    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{text!r} is not a target; allowed: {HELP}", USAGE)
    attribute, said, divergence = found[1], (found[2] or "").strip(), found[3] or "jsd"
    if said in ("", "uniform", "collection"):
        if collection is None:
            raise CommandError(
                f"{text!r} needs --collection, to look up its groups; or name them: {attribute}=A:1,B:1",
                USAGE,
            )
        return _of_collection(client, collection, attribute, own=said == "collection", divergence=divergence)
    weights = _weights(text, said)
    total = sum(weights.values())
    if len(weights) < 2 or total <= 0 or min(weights.values()) < 0:
        raise CommandError(f"{text!r}: allowed are at least two groups with shares from 0", USAGE)
    return GroupTarget(
        attribute,
        tuple(weights),
        tuple(weight / total for weight in weights.values()),
        divergence,  # type: ignore[arg-type]  # as the pattern has it
    )


def attributes_json(targets: "Sequence[GroupTarget]") -> str:
    """Return targets in the JSON that `evenmesh eval conversation --attributes` reads."""
    return json.dumps(
        {
            one.attribute: {
                "weights": list(one.shares or (1.0,) * len(one.groups)),
                "divergence": one.divergence,
            }
            for one in targets
        },
        indent=2,
    )


def _of_collection(
    client: "Client", collection: str, attribute: str, *, own: bool, divergence: str
) -> "GroupTarget":
    from evenmesh.types.conversation import group_target

    values = [passage.attributes.get(attribute, "") for passage in client.passages(collection)]
    target = group_target(values, attribute, own=own, divergence=divergence)  # type: ignore[arg-type]
    if target is None:
        raise CommandError(
            f"the passages of {collection!r} have fewer than two groups in {attribute!r}", USAGE
        )
    return target


def _weights(text: str, said: str) -> dict[str, float]:
    try:
        if said.startswith("{"):
            return {str(name): float(weight) for name, weight in json.loads(said).items()}
        pairs = [part.rpartition(":") for part in said.split(",")]
        weights = {name.strip(): float(weight) for name, _, weight in pairs}
        if all(weights) and len(weights) == len(pairs):
            return weights
    except (ValueError, TypeError, AttributeError) as exc:
        raise CommandError(f"{text!r} is not a target: {exc}; allowed: {HELP}", USAGE) from exc
    raise CommandError(f"{text!r} is not a target; allowed: {HELP}", USAGE)
