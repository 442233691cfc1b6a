/** The questions of an audit and their labels, read from what was pasted or from files, with all that is wrong with them. */

/** A question; `useful` is undefined where nobody said which passages are. */
export interface Question {
  id: string;
  question: string;
  references: string[];
  search?: string;
  useful?: string[];
}

export interface Read {
  questions: Question[];
  problems: string[];
}

export const MOST_QUESTIONS = 1000;
/** Most characters of a file that is read. */
export const MOST_CHARACTERS = 20_000_000;
const MOST_PROBLEMS = 20;
const KNOWN = new Set(["query_id", "id", "question", "references", "answers", "search", "useful", "useful_passage_ids", "providers"]);

class Problems {
  readonly all: string[] = [];
  add(line: number, words: string): void {
    if (this.all.length < MOST_PROBLEMS) this.all.push(`Line ${line}: ${words}`);
    else if (this.all.length === MOST_PROBLEMS) this.all.push("There is more.");
  }
}

/**
 * Read questions: JSON lines as `evenmesh audit` takes them, or one question a line, and after tabs its right answers, as
 * cells of a spreadsheet are copied.
 */
export function readQuestions(text: string): Read {
  const problems = new Problems();
  const questions: Question[] = [];
  const seen = new Map<string, number>();
  lines(text).forEach(([number, line]) => {
    const one = line.startsWith("{") ? ofJson(line, number, problems) : ofLine(line, questions.length + 1);
    if (!one) return;
    const before = seen.get(one.id);
    if (before !== undefined) return problems.add(number, `repeats the id “${one.id}” of line ${before}.`);
    if (new TextEncoder().encode(one.question).length > 8192) return problems.add(number, "the question is longer than 8,192 bytes.");
    seen.set(one.id, number);
    questions.push(one);
  });
  if (questions.length > MOST_QUESTIONS) problems.add(questions.length, `there are more than ${MOST_QUESTIONS} questions; the command “evenmesh audit” takes any number.`);
  return { questions: questions.slice(0, MOST_QUESTIONS), problems: problems.all };
}

/**
 * Give questions their labels: judgements in the format of TREC (`QUERY 0 PASSAGE GRADE`), or JSON lines with `query_id`,
 * `passage_id` and `grade`. A passage is useful from grade 1.
 */
export function withLabels(questions: Question[], text: string): Read {
  const problems = new Problems();
  const useful = new Map<string, string[]>();
  const judged = new Set<string>();
  lines(text).forEach(([number, line]) => {
    const found = judgement(line);
    if (!found) return problems.add(number, "is no judgement, such as “q1 0 p7 1”.");
    const [query, passage, grade] = found;
    const pair = JSON.stringify([query, passage]);
    if (judged.has(pair)) return problems.add(number, `judges ${passage} for ${query} again.`);
    judged.add(pair);
    const of = useful.get(query) ?? [];
    if (grade >= 1) of.push(passage);
    useful.set(query, of);
  });
  const labelled = questions.map((one) => ({ ...one, ...(useful.has(one.id) ? { useful: useful.get(one.id)!.sort() } : {}) }));
  if (useful.size && !labelled.some((one) => useful.has(one.id))) problems.all.push(`The labels are of other questions: “${[...useful.keys()][0]}” is none of these.`);
  return { questions: labelled, problems: problems.all };
}

function lines(text: string): [number, string][] {
  return text
    .split(/\r\n|\n|\r/)
    .map((line, index): [number, string] => [index + 1, line.trim()])
    .filter(([, line]) => line !== "");
}

function ofLine(line: string, place: number): Question {
  const [question, ...references] = line.split("\t").map((part) => part.trim());
  return { id: `q${place}`, question: question!, references: references.filter(Boolean) };
}

function ofJson(line: string, number: number, problems: Problems): Question | undefined {
  let value: Record<string, unknown>;
  try {
    value = JSON.parse(line) as Record<string, unknown>;
  } catch {
    problems.add(number, "is no JSON.");
    return undefined;
  }
  const odd = Object.keys(value).filter((name) => !KNOWN.has(name));
  if ("passages" in value) problems.add(number, "brings passages of its own, which only the command “evenmesh audit” takes.");
  else if (odd.length) problems.add(number, `“${odd[0]}” is not known here.`);
  const id = value["query_id"] ?? value["id"];
  const references = value["references"] ?? value["answers"] ?? [];
  const useful = value["useful"] ?? value["useful_passage_ids"];
  if (typeof id !== "string" || !id || typeof value["question"] !== "string" || !value["question"].trim()) {
    problems.add(number, "needs the texts “query_id” and “question”.");
    return undefined;
  }
  if (!texts(references) || (useful !== undefined && !texts(useful))) {
    problems.add(number, "“references” and “useful” are lists of texts.");
    return undefined;
  }
  return {
    id,
    question: value["question"],
    references,
    ...(typeof value["search"] === "string" ? { search: value["search"] } : {}),
    ...(useful ? { useful: [...new Set(useful)].sort() } : {}),
  };
}

const texts = (value: unknown): value is string[] => Array.isArray(value) && value.every((one) => typeof one === "string");

function judgement(line: string): [string, string, number] | undefined {
  if (line.startsWith("{")) {
    try {
      const value = JSON.parse(line) as Record<string, unknown>;
      const passage = value["passage_id"] ?? value["doc_id"];
      const grade = value["grade"] ?? value["relevance"];
      if (typeof value["query_id"] === "string" && typeof passage === "string" && typeof grade === "number") return [value["query_id"], passage, grade];
    } catch {
      // It is none.
    }
    return undefined;
  }
  const [query, , passage, grade, ...more] = line.split(/\s+/);
  if (!query || !passage || !grade || more.length || !/^-?\d+$/.test(grade)) return undefined;
  return [query, passage, Number(grade)];
}
