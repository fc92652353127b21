/** Numbers as people read them, and numbers from files that others have written. */

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const BYTE_UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const TIME_UNITS = [["second", 1], ["minute", 60], ["hour", 3600], ["day", 86400], ["year", 31557600]];

/** Return the value if it is a finite number within the bounds, else null. */
export function numberWithin(value, low, high) {
  return typeof value === "number" && Number.isFinite(value) && value >= low && value <= high ? value : null;
}

/** Return the value if it is a whole number within the bounds, else null. */
export function wholeWithin(value, low, high) {
  return Number.isInteger(value) ? numberWithin(value, low, high) : null;
}

/** 12345 -> "12,345". */
export function asCount(value) {
  return Math.round(value).toLocaleString("en");
}

/** 123456789 -> "123M", for where there is little room. */
export function asShort(value) {
  return Math.abs(value) < 10000 ? asFigure(value) : compact.format(value);
}

/** Three significant digits: 0.01234 -> "0.0123", 7.5 -> "7.5". */
export function asFigure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(1);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 4 : 3 });
}

/** 2_500_000 -> "2.5 MB". */
export function asBytes(value) {
  const power = Math.min(BYTE_UNITS.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${asFigure(value / 1000 ** power)} ${BYTE_UNITS[power]}`;
}

/** 5400 -> "1.5 hours". */
export function asDuration(seconds) {
  const [name, size] = unitOf(seconds);
  const count = seconds / size;
  const text = count >= 10 ? asCount(count) : asFigure(Number(count.toPrecision(2)));
  return `${text} ${name}${text === "1" ? "" : "s"}`;
}

/** Seconds since 1970 -> "3 minutes ago"; a time to come, from a clock that is ahead, is "just now". */
export function asAgo(time, now = Date.now() / 1000) {
  const [name, size] = unitOf(now - time);
  const count = Math.round((now - time) / size);
  return now - time < 10 ? "just now" : `${count} ${name}${count === 1 ? "" : "s"} ago`;
}

/** Seconds since 1970 -> "21 Nov 2026, 14:05". */
export function asDate(time) {
  const options = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" };
  return new Date(time * 1000).toLocaleString("en-GB", options);
}

function unitOf(seconds) {
  return TIME_UNITS.findLast(([, size]) => seconds >= size) ?? TIME_UNITS[0];
}
