/** Reading public files from the Hub, and saying plainly why one cannot be read. */

const PATIENCE_MILLISECONDS = 20000;
const LARGEST_TEXT = 4e6;

/** `kind`: "away" (no answer), "unknown" (no such repository, or a private one), "missing" (no such file), "damaged". */
export class HubProblem extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** Return the address at which the Hub serves a file. `place` is `ORG/NAME`, `datasets/ORG/NAME`, or `buckets/ORG/NAME`. */
export function fileAddress(hub, place, path, revision = "main") {
  const revisions = place.startsWith("buckets/") ? [] : [revision];
  const parts = [...place.split("/"), "resolve", ...revisions, ...path.split("/")];
  return `${hub}/${parts.map(encodeURIComponent).join("/")}`;
}

/** Return a file's text. Throws HubProblem. */
export async function fetchText(hub, repository, path, revision) {
  const answer = await ask(fileAddress(hub, repository, path, revision), hub);
  if (answer.ok) {
    const text = await answer.text().catch((error) => {
      throw new HubProblem("away", `${hub} stopped while sending ${path} (${error.message}).`);
    });
    if (text.length > LARGEST_TEXT) throw new HubProblem("damaged", `${path} has ${text.length} characters, far too many.`);
    return text;
  }
  const code = answer.headers.get("x-error-code");
  if (code === "EntryNotFound" || (answer.status === 404 && code !== "RepoNotFound")) {
    throw new HubProblem("missing", `${repository} has no ${path}.`);
  }
  if ([401, 403, 404].includes(answer.status)) {
    throw new HubProblem("unknown", `${hub} has no public repository ${repository}: the name is wrong, or it is private.`);
  }
  throw new HubProblem("away", `${hub} answers with status ${answer.status}. It may be overloaded.`);
}

/** Return what a JSON file holds. Throws HubProblem. */
export async function fetchJson(hub, repository, path, revision) {
  const text = await fetchText(hub, repository, path, revision);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HubProblem("damaged", `${path} of ${repository} is not JSON (${error.message}).`);
  }
}

async function ask(address, hub) {
  try {
    // Always asked again, answered with "not modified" where nothing is new.
    return await fetch(address, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MILLISECONDS) });
  } catch {
    const reason = navigator.onLine ? "it may be down at the moment" : "this device is offline";
    throw new HubProblem("away", `${hub} does not answer: ${reason}.`);
  }
}
