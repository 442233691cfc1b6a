/** What the words of the console mean, in one or two sentences each. */

export const GLOSSARY = {
  exposure:
    "How often a passage is among those that the model is given, over many sampled rankings: 1 is always, 0 never.",
  disparity:
    "How unevenly passages are shown over the samples (EE-D over its bound). 1: the same passages every time. The least is the share of the pool that is shown: every passage as often as any other. Of one ranking it is always 1.",
  relevance:
    "How much of the exposure goes to the passages that you marked as useful (EE-R over its bound). 1: as much as possible.",
  "fairness dial":
    "Says how closely the order follows the scores (α). At 0 any order is as likely as any other; the higher, the more often the best-scored passages come first.",
  sample:
    "One ranking drawn at random at this setting of the dial. Different readers get different samples; so over many readers each provider gets its share.",
  provider: "Who a passage is from: its attribute “provider”.",
  target:
    "The share that a provider should have. With passages marked as useful it is their equal exposure; without any, the same share for each provider that was found.",
  "relevance of a conversation":
    "How much of a reader's patience went to sources (R): each counts once, and less the more words come before it. One early source is 0.0016; 1 would be a source in every word.",
  "group fairness":
    "How close the groups of the cited sources come to the shares that each should have (GF), as a mean over turns. 1: exactly as wanted.",
  "fair to":
    "The attribute whose values are the groups, such as the provider, and the share of the cited sources that each group should have.",
  "searched for":
    "What the mesh looks for in a later turn: your words, and words of earlier turns that yours lack. So “and how do I clean it?” finds what “it” is.",
  ensemble: "Several ways to search that answer the same question and vote.",
  expression:
    "How a member searches: a source, @RR to rank it again, @3 for the first three passages, & to join two lists. PK is what the model knows; ReFree takes no passages.",
  "score of an answer":
    "How alike an answer is to the other answers, weighed by how much its member counts. The highest score wins.",
  likeness: "How much two answers have in common, 0 to 1. Unless set up otherwise it is token F1: the words that both have.",
  retriever: "Finds passages for a question, and scores them.",
  reranker: "Reads the best passages together with the question and scores them again.",
  utility: "How good answers are beside the right ones, 0 to 1. It is known only for asks with right answers.",
  interval: "Where the true mean lies with 95 % confidence, given how many asks there were.",
  degraded: "A step failed or took too long, and the mesh did something simpler instead of failing.",
  run: "Asks that are reported together; without a name of its own, all asks of one day (UTC).",
} as const;

export type Word = keyof typeof GLOSSARY;
