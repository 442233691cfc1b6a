/** The steps of an ask, as verbs. */

import { Stage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";

export const STEPS: Record<number, string> = {
  [Stage.RETRIEVE]: "find",
  [Stage.RERANK]: "rank again",
  [Stage.GENERATE]: "answer",
  [Stage.OBSERVE]: "record",
};
