/**
 * What of a large matrix is seen. Law: a window is in tokens, so zooming and moving ask for no numbers; the level of tiles
 * follows from it: the finest at which a cell is not smaller than a pixel.
 */

/** Cells of a side of a tile. */
export const CELLS = 256;
/** Pixels of a token, at most. */
const LARGEST = 28;

export interface Window { left: number; top: number; /** Pixels of a token. */ scale: number }
export interface Place { z: number; x: number; y: number }

/** All of it, in at most `side` pixels. */
export function whole(n: number, side: number): Window {
  return { left: 0, top: 0, scale: n <= side ? Math.min(LARGEST, Math.floor(side / n)) : side / n };
}

export function levelOf(scale: number): number {
  let z = 0;
  while (scale * 2 ** z < 1 - 1e-9) z++;
  return z;
}

/** The window moved so far that it shows nothing beyond the matrix; `side` is that of what is drawn, in pixels. */
export function within(w: Window, n: number, side: number): Window {
  const end = Math.max(0, n - side / w.scale);
  return { ...w, left: Math.min(Math.max(w.left, 0), end), top: Math.min(Math.max(w.top, 0), end) };
}

/** Larger by a factor around a pixel, which stays where it is. */
export function zoomed(w: Window, n: number, side: number, factor: number, x: number, y: number): Window {
  const least = whole(n, side).scale, scale = Math.min(Math.max(w.scale * factor, least), Math.max(least, LARGEST));
  return within({ scale, left: w.left + x / w.scale - x / scale, top: w.top + y / w.scale - y / scale }, n, side);
}

/** Moved so that a query is seen, and as many of the keys before it as fit. */
export function showing(w: Window, n: number, side: number, query: number): Window {
  const seen = side / w.scale;
  if (query >= w.top && query + 1 <= w.top + seen) return w;
  return within({ ...w, top: query - seen / 2, left: query - seen / 2 }, n, side);
}

/** Tiles that the window shows, but for those in which no query sees a key. */
export function tilesIn(w: Window, n: number, side: number): Place[] {
  const z = levelOf(w.scale), size = CELLS * 2 ** z, last = Math.ceil(n / size) - 1, seen = side / w.scale;
  const end = (start: number) => Math.min(last, Math.floor((start + seen - 1e-9) / size));
  const found: Place[] = [];
  for (let y = Math.floor(w.top / size); y <= end(w.top); y++)
    for (let x = Math.floor(w.left / size); x <= Math.min(y, end(w.left)); x++) found.push({ z, x, y });
  return found;
}
