// The entrance: what one comes for, and what money and days train.

import { h } from "./dom.js";
import { DOORS } from "./fields.js";

const FIRST = ["train", "tune", "serve"];

/** `enter(door)` opens a door; `budget(money, days)` asks what these train. */
export function entrance(enter, budget) {
  const door = (name) => h("button", { type: "button", class: "door", onclick: () => enter(name) },
    h("strong", null, DOORS[name].name), h("span", null, DOORS[name].text));
  const money = h("input", { id: "entrance-money", placeholder: "3M", required: true, maxlength: 40 });
  const days = h("input", { id: "entrance-days", placeholder: "60", required: true, maxlength: 40 });
  const field = (label, input) => h("p", { class: "field" }, h("label", { for: input.id }, label), input);
  return [h("h2", null, "What do you want to run on your GPUs?"), h("div", { class: "three" }, FIRST.map(door)),
    h("form", { class: "line", "aria-label": "Budget", autocomplete: "off", onsubmit: (event) => {
      event.preventDefault();
      budget(money.value.trim(), days.value.trim());
    } }, h("h2", null, "Or begin with a budget"), field("Money", money), field("Days", days),
    h("button", { type: "submit" }, "What does it train?")),
    h("p", { class: "others" }, Object.keys(DOORS).filter((name) => !FIRST.includes(name)).map((name) =>
      h("button", { type: "button", class: "plain", onclick: () => enter(name) }, h("strong", null, DOORS[name].name), ` ${DOORS[name].text}`)))];
}
