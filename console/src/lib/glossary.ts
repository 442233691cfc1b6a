/** What the words of the console mean, in one or two sentences each. */

export const GLOSSARY = {
  exposure:
    "How often a passage is among those that the model is given, over many sampled rankings: 1 is always, 0 never.",
  disparity:
    "How unevenly passages are shown over the samples (EE-D over its bound). 1: the same passages every time. 0: every passage of the pool as often as any other.",
  relevance:
    "How much of the exposure goes to the passages that you marked as useful (EE-R over its bound). 1: as much as possible.",
  "fairness dial":
    "Says how closely the order follows the scores (α). At 0 any order is as likely as any other; the higher, the more often the best-scored passages come first.",
  sample:
    "One ranking drawn at random at this setting of the dial. Different readers get different samples; so over many readers each provider gets its share.",
  provider: "Who a passage is from: its attribute “provider”.",
  target:
    "The share that a provider should have. With passages marked as useful it is their equal exposure; without any, the same share for each provider that was found.",
  retriever: "Finds passages for a question, and scores them.",
  reranker: "Reads the best passages together with the question and scores them again.",
  utility: "How good answers are beside the right ones, 0 to 1. It is known only for asks with right answers.",
  interval: "Where the true mean lies with 95 % confidence, given how many asks there were.",
  degraded: "A step failed or took too long, and the mesh did something simpler instead of failing.",
  run: "Asks that are reported together; without a name of its own, all asks of one day (UTC).",
} as const;

export type Word = keyof typeof GLOSSARY;
