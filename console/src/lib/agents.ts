/** Names of agents. */

import type { Agent } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";

/** Return the name of an agent; one that is unset stands for all of them. */
export function agentName(agent: Agent | undefined): string {
  if (agent === undefined) return "all agents";
  const { taskId, modelId } = agent;
  if (!taskId) return modelId ? `model ${modelId}` : "unknown agent"; // a task of that name is another agent
  return modelId ? `${taskId} · ${modelId}` : taskId;
}

/** Return what tells one agent from all others; their names may agree. */
export const agentKey = (agent: Agent | undefined): string =>
  agent === undefined ? "" : JSON.stringify([agent.taskId, agent.modelId]);
