/** The page of one volunteer, ?volunteer=NAME: what this user has given. It needs nothing of the volunteer's machine. */

import { byId, outwardLink } from "./elements.js";
import { asCount } from "./numbers.js";

const USER = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$/;

/** Return the address of a user's page, or nothing for what can be no user's name. */
export function volunteerAddress(username) {
  if (!USER.test(username)) return "";
  const parameters = new URLSearchParams(location.search);
  parameters.set("volunteer", username);
  return `?${parameters}#volunteer`;
}

/** Show what the user whom the address names has given, if it names one. */
export function showVolunteer(hub, run, { leaderboard, numContributors }) {
  const asked = new URLSearchParams(location.search).get("volunteer") ?? "";
  if (!USER.test(asked)) return;
  const ranked = leaderboard.filter((one) => one.samples_all > 0).sort((one, other) => other.samples_all - one.samples_all);
  const place = ranked.findIndex((one) => one.username === asked);
  const all = asCount(Math.max(ranked.length, numContributors));
  const words =
    place < 0
      ? ` is not among the ${asCount(ranked.length)} users whom the run lists.`
      : ` gave ${asCount(ranked[place].samples_all)} samples to ${run}: place ${asCount(place + 1)} of ${all}.`;
  const isNew = byId("volunteer").hidden;
  byId("volunteer").hidden = false;
  byId("volunteer").replaceChildren(outwardLink(`${hub}/${asked}`, asked), words);
  if (isNew && location.hash === "#volunteer") byId("volunteer").scrollIntoView();
}
