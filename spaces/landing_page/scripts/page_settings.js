/** Which run this page shows: `settings.json` of the Space, and `?run=ORG/RUN` in the address. */

const REPOSITORY = /^[A-Za-z0-9][A-Za-z0-9._-]{0,95}\/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$/;
const SPACES = ["training_dashboard", "text_to_image_demo", "memory_calculator", "join_training"];

/** Whether the text names a repository. */
export function isRepository(text) {
  return typeof text === "string" && REPOSITORY.test(text) && !text.includes("..") && !text.includes("--");
}

/** Return `{hub, run, spaces, sourceCode, problem}`: addresses of Spaces by name; `problem` says what is wrong. */
export async function readSettings(address) {
  const settings = { hub: "", run: "", spaces: {}, sourceCode: "", problem: "" };
  let values;
  try {
    const answer = await fetch("settings.json", { cache: "no-cache" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    values = await answer.json();
    settings.hub = webAddress(values.hub).origin;
  } catch (error) {
    settings.problem = `The settings of this page cannot be read (${error.message}). Its organiser can publish it again.`;
    return settings;
  }
  settings.sourceCode = readableAddress(values.source_code);
  for (const name of SPACES) settings.spaces[name] = spaceAddress(settings.hub, values[name]);
  const asked = new URLSearchParams(address).get("run");
  settings.run = asked ?? values.run ?? "";
  if (settings.run === "") {
    settings.problem =
      "This page does not know which run to show. Add ?run=ORG/RUN to its address, or publish it with --set run=ORG/RUN.";
  } else if (!isRepository(settings.run)) {
    settings.problem = `“${String(settings.run).slice(0, 60)}” is not the name of a run. Expected ORG/RUN, such as my-org/birds.`;
    settings.run = "";
  }
  return settings;
}

function webAddress(text) {
  const address = new URL(text);
  if (!["http:", "https:"].includes(address.protocol)) throw new Error(`${address.protocol} is not a web address`);
  return address;
}

/** Return where a Space is that is named as a repository of the Hub or by its address; empty: nowhere. */
function spaceAddress(hub, value) {
  return isRepository(value) ? `${hub}/spaces/${value}` : readableAddress(value);
}

function readableAddress(text) {
  try {
    return webAddress(text).href;
  } catch {
    return "";
  }
}
