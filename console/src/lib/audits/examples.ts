/** Some questions about the demo's collection, with their right answers and the passages that hold them. */

const EXAMPLES: [string, string, number[]][] = [
  ["How often should I oil my bike chain?", "every 200 kilometres", [1, 2, 3, 4, 5, 6]],
  ["How long should chain oil soak in before I wipe off the excess?", "ten minutes", [1, 2, 3, 5]],
  ["At what wear should I replace my bike chain?", "0.5 percent", [7, 8, 9, 10, 11]],
  ["How often should I check the air in my bike tyres?", "once a week", [12, 14, 15, 16, 17]],
  ["Where on the rim should I finish when putting a tyre back on?", "at the valve", [25, 26, 27, 28]],
  ["How many stops does it take to bed in new disc brake pads?", "twenty stops", [34, 35, 36, 37]],
];

export const DEMO = EXAMPLES.map(([question, answer, passages], index) =>
  JSON.stringify({
    query_id: `bike-${index + 1}`,
    question,
    references: [answer],
    useful: passages.map((number) => `bike-${String(number).padStart(4, "0")}`),
  }),
).join("\n");
