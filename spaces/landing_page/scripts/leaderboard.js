/** Who has contributed how much. User names are strangers' texts. */

import { byId, element } from "./elements.js";
import { asCount, asDuration, asShort } from "./numbers.js";
import { volunteerAddress } from "./volunteer.js";

const SHOWN_FIRST = 10;
const EMPTY = { today: "Nobody has contributed today yet.", week: "Nobody has contributed in the last seven days.", all: "Nobody has contributed yet." };

const shown = { span: "all", isWhole: false, contributors: [], sort: "samples", isUp: false };

/** Connect the choice of a span of time, the heads of the table, and the button for more rows. */
export function prepareLeaderboard() {
  for (const choice of document.querySelectorAll("input[name=span]")) {
    choice.addEventListener("change", () => {
      shown.span = choice.value;
      draw();
    });
  }
  for (const head of document.querySelectorAll("#leaderboard [data-sort]")) {
    head.addEventListener("click", () => {
      shown.isUp = shown.sort === head.dataset.sort ? !shown.isUp : head.dataset.sort === "username";
      shown.sort = head.dataset.sort;
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
  const ranked = shown.contributors.filter((one) => one[samples] > 0).sort((one, other) => other[samples] - one[samples]);
  const ranks = new Map(ranked.map((one, index) => [one, index + 1]));
  const active = sorted(ranked);
  const rows = shown.isWhole ? active : active.slice(0, SHOWN_FIRST);
  byId("leaderboard-rows").replaceChildren(...rows.map((one) => contributorRow(one, ranks.get(one), ranked[0][samples])));
  for (const head of document.querySelectorAll("#leaderboard [data-sort]")) {
    const isChosen = head.dataset.sort === shown.sort;
    head.parentElement.ariaSort = isChosen ? (shown.isUp ? "ascending" : "descending") : "none";
  }
  byId("leaderboard").hidden = rows.length === 0;
  byId("leaderboard-empty").textContent = rows.length ? "" : EMPTY[shown.span];
  const more = byId("leaderboard-more");
  more.hidden = active.length <= SHOWN_FIRST;
  more.textContent = shown.isWhole ? `Show the first ${SHOWN_FIRST}` : `Show all ${asCount(active.length)}`;
}

/** Return the contributors in the chosen order; equal ones stay as they are ranked. */
function sorted(ranked) {
  const value = (one) => one[`${shown.sort}_${shown.span}`];
  const byName = (one, other) => one.username.localeCompare(other.username);
  const order = shown.sort === "username" ? byName : (one, other) => value(one) - value(other);
  return [...ranked].sort((one, other) => (shown.isUp ? order(one, other) : order(other, one)));
}

function contributorRow(one, rank, most) {
  const [samples, hours] = [one[`samples_${shown.span}`], one[`hours_${shown.span}`]];
  const address = volunteerAddress(one.username);
  const name = address ? element("a", { href: address, textContent: one.username }) : one.username;
  const bar = element("span", { className: "bar", ariaHidden: "true" });
  bar.style.width = `${(100 * samples) / most}%`;
  return element(
    "tr",
    {},
    element("td", { className: "rank", textContent: rank }),
    element("th", { scope: "row", title: one.username }, name),
    element("td", { className: "share" }, bar),
    element("td", { textContent: asShort(samples), title: asCount(samples) }),
    element("td", { textContent: hours > 0 ? asDuration(hours * 3600) : "–" }),
  );
}
