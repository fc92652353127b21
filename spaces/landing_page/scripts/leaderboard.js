/** Who has contributed how much. User names are strangers' texts. */

import { byId, element } from "./elements.js";
import { asCount, asDuration, asShort } from "./numbers.js";
import { volunteerAddress } from "./volunteer.js";

const SHOWN_FIRST = 10;
const EMPTY = { today: "Nobody has contributed today yet.", week: "Nobody has contributed in the last seven days.", all: "Nobody has contributed yet." };

const shown = { span: "all", isWhole: false, contributors: [] };

/** Connect the choice of a span of time and the button for more rows. */
export function prepareLeaderboard() {
  for (const choice of document.querySelectorAll("input[name=span]")) {
    choice.addEventListener("change", () => {
      shown.span = choice.value;
      draw();
    });
  }
  byId("leaderboard-more").addEventListener("click", () => {
    shown.isWhole = !shown.isWhole;
    draw();
  });
}

/** Show the contributors of a summary. */
export function showLeaderboard(contributors) {
  Object.assign(shown, { contributors });
  byId("people").hidden = false;
  draw();
}

function draw() {
  const samples = `samples_${shown.span}`;
  const active = shown.contributors.filter((one) => one[samples] > 0).sort((one, other) => other[samples] - one[samples]);
  const rows = shown.isWhole ? active : active.slice(0, SHOWN_FIRST);
  byId("leaderboard-rows").replaceChildren(...rows.map((one, index) => contributorRow(one, index, active[0][samples])));
  byId("leaderboard").hidden = rows.length === 0;
  byId("leaderboard-empty").textContent = rows.length ? "" : EMPTY[shown.span];
  const more = byId("leaderboard-more");
  more.hidden = active.length <= SHOWN_FIRST;
  more.textContent = shown.isWhole ? `Show the first ${SHOWN_FIRST}` : `Show all ${asCount(active.length)}`;
}

function contributorRow(one, index, most) {
  const [samples, hours] = [one[`samples_${shown.span}`], one[`hours_${shown.span}`]];
  const address = volunteerAddress(one.username);
  const name = address ? element("a", { href: address, textContent: one.username }) : one.username;
  const bar = element("span", { className: "bar", ariaHidden: "true" });
  bar.style.width = `${(100 * samples) / most}%`;
  return element(
    "tr",
    {},
    element("td", { className: "rank", textContent: index + 1 }),
    element("th", { scope: "row", title: one.username }, name),
    element("td", { className: "share" }, bar),
    element("td", { textContent: asShort(samples), title: asCount(samples) }),
    element("td", { textContent: hours > 0 ? asDuration(hours * 3600) : "–" }),
  );
}
