/* That a file is too large, and by how much: in whole units one that is a little too large has as many as it may have. */

const UNITS = [[2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

function sizeText(bytes) {
  const [size, unit] = UNITS.find(([least]) => Math.round((bytes / least) * 1024) >= 1024);  // as it is rounded
  return `${Math.round(bytes / size)} ${unit}`;
}

export function tooLarge(what, { size }, most) {
  return `${what} has at most ${sizeText(most)}; this file has ${sizeText(size - most)} more.`;
}
