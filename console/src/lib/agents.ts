/** Names of agents. */

import type { Agent } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";

/** Return the name of an agent; one that is unset stands for all of them. */
export const agentName = (agent: Agent | undefined): string =>
  agent === undefined ? "all agents" : [agent.taskId, agent.modelId].filter(Boolean).join(" · ") || "unknown agent";
