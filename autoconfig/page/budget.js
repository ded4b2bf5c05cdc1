// What money and days train: the choice, its rivals on other GPUs, what the next size takes.

import { planText } from "./charts.js";
import { h, summaryBox } from "./dom.js";
import { chance, count, days, fixed, large, money, percent } from "./format.js";

const DECIDES = { money: "the money", days: "the days", family: "the family has no larger size", model: "the model was named" };

/** What a budget trains, in a sentence. */
export function budgetSentence({ best, currency, decides, most_tokens: most }) {
  if (!best) return h("p", { class: "headline bad" }, "This budget trains none of them.");
  return h("p", { class: "headline" }, h("strong", null, `${best.size.name} on ${large(best.tokens)} tokens`),
    ` with ${count(best.num_gpus)} x ${best.gpu}: ${days(best.days)} days, ${money(best.cost, currency)}. `, h("span", { class: "quiet" },
      `What decides: ${DECIDES[decides]}.${most ? ` All of it would pay for ${large(most)} tokens.` : ""}`));
}

/** The same below an answer about given GPUs: what the budget trains on this type. */
export const budgetNote = (answer) => h("div", { class: "note" }, h("p", null, `What ${money(answer.money, answer.currency)} and ${days(answer.days)} days train on ` +
  `${answer.prices.map((one) => `${one.gpu} at ${one.price_per_gpu_hour}`).join(", ")}:`), budgetSentence(answer));

const sums = (currency) => (value) => money(value, currency);

/** A choice in words. */
const choiceText = (one, sum) => `${one.size.name} on ${count(one.num_gpus)} x ${one.gpu}: ${days(one.days)} days, ${sum(one.cost)}`;

/** What would be possible where nothing is, or for a larger size. */
function possible(title, other, sum) {
  if (!other) return null;
  const [least, quickest, cheapest] = [other.least_money, other.least_days, other.cheapest];
  const lines = [least && `in the days: ${choiceText(least, sum)}`, quickest && `for the money: ${choiceText(quickest, sum)}`,
    !least && !quickest && cheapest && choiceText(cheapest, sum)].filter(Boolean);
  return h("div", { class: "note" }, h("p", null, `${title} ${other.size.name}${lines.length ? " would be possible" : ": no count of these GPUs does it"}`),
    lines.length ? h("ul", null, lines.map((line) => h("li", null, line))) : null);
}

/** The whole answer; `use(choice)` takes one into the question of plans. */
export function budgetView(answer, use) {
  const sum = sums(answer.currency);
  const { best, choices } = answer;
  const asked = [sum(answer.money), `${days(answer.days)} days`, answer.family ? `sizes of ${answer.family}` : best ? best.size.name : "one model",
    answer.tokens_from === "given" ? "tokens as given" : "20 tokens a parameter"];
  const prices = answer.prices.map((one) => `${one.gpu} ${one.price_per_gpu_hour} (${one.source}${one.date ? `, ${one.date}` : ""})`).join("; ");
  const heads = ["size", "GPUs", "tokens", "days", "cost", "against the first", "MFU", "fits", "look at"];
  return h("div", { class: "budget" },
    budgetSentence(answer),
    summaryBox(asked, `prices per GPU and hour: ${prices}`, answer.assumed),
    best ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Choices" },
      h("table", { class: "figures choices" }, h("caption", null, "The cheapest of each GPU type"),
        h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, choices.map((one) => h("tr", null, h("th", { scope: "row" }, one.size.name),
          [`${count(one.num_gpus)} x ${one.gpu}`, large(one.tokens), days(one.days), sum(one.cost), `${fixed(one.cost / choices[0].cost, 2)}x`,
            percent(one.best.mfu, 1), chance(one.best.confidence.fit_probability)].map((text) => h("td", null, text)),
          h("td", null, h("button", { type: "button", class: "small", "aria-label": `Plans of ${one.size.name} on ${one.gpu}`, onclick: () => use(one) }, "plans"))))))) : null,
    best ? h("p", { class: "quiet" }, "its plan: ", planText(best.best.short)) : null,
    possible("With another budget", answer.next_size, sum), possible("The smallest,", answer.instead, sum),
    answer.left_out.map((one) => h("p", { class: "quiet" }, `${one.gpu}: ${one.why}`)));
}
