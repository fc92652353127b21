/** Numbers as people read them, and numbers from files that others have written. */

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const UNITS_OF_FILES = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const UNITS_OF_MEMORY = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

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

/** A loss with the digits that it has everywhere: 2.34561 -> "2.3456", as `nats` of hub_tools/counted.py writes it. */
export function asLoss(value) {
  return value.toLocaleString("en", { minimumFractionDigits: 4, maximumFractionDigits: 4 });
}

/** Bytes of a file or of traffic: 2_500_000 -> "2.5 MB", as `file_size` of hub_tools/counted.py writes it. */
export function asBytes(value) {
  return inUnits(value, 1000, UNITS_OF_FILES);
}

/** Bytes of a memory: 2 ** 31 -> "2 GiB", as `memory_size` of hub_tools/counted.py writes it. */
export function asMemory(value) {
  return inUnits(value, 1024, UNITS_OF_MEMORY);
}

function inUnits(value, base, units) {
  let [number, power] = [value, 0];
  for (; number >= 999.5 && power < units.length - 1; power += 1) number /= base;
  const digits = number >= 99.95 || power === 0 ? 0 : 1;
  return `${Number(number.toFixed(digits)).toLocaleString("en")} ${units[power]}`;
}

/** 5400 -> "1 h 30 min", as `duration` of hub_tools/counted.py writes it. */
export function asDuration(seconds) {
  if (seconds < 1) return `${asFigure(seconds)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes >= 48 * 60) return `${(seconds / 86400).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} days`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Seconds since 1970 -> "2026-11-21 14:05 UTC", as the dashboard and the reports write it. */
export function asDate(time) {
  return `${new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
