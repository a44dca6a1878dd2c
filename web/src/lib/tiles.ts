/** Tiles of one head, fetched as they are wanted and painted once. Law: what is out of sight is not waited for. */
import { tile, type Tile } from "./api";
import { TABLE } from "./colour";
import { CELLS, type Place } from "./pyramid";

const KEPT = 64; // a painted tile takes 320 KiB
const COLOURS = new Uint32Array(TABLE.buffer);

export interface Painted extends Tile { picture: HTMLCanvasElement }

const nameOf = ({ z, x, y }: Place) => `${z}/${x}/${y}`;

export class Tiles {
  private held = new Map<string, Painted>();
  private wanted: Place[] = [];
  private asked: { name: string; stop: AbortController } | null = null;

  /** `changed` is told of each tile that came, and of what went wrong. */
  constructor(private trace: string, private layer: number, private head: number, private changed: (fault: string) => void) {}

  get(place: Place): Painted | undefined {
    return this.held.get(nameOf(place));
  }

  /** Fetch these, one after the other; others are given up. */
  want(places: Place[]): void {
    this.wanted = places.filter((p) => !this.held.has(nameOf(p)));
    for (const p of places) this.touch(nameOf(p));
    if (this.asked && !this.wanted.some((p) => nameOf(p) === this.asked!.name)) this.asked.stop.abort();
    if (!this.asked) void this.fetch();
  }

  close(): void {
    this.wanted = [];
    this.asked?.stop.abort();
  }

  private async fetch(): Promise<void> {
    for (let place = this.wanted[0]; place; place = this.wanted[0]) {
      const name = nameOf(place), stop = new AbortController();
      this.asked = { name, stop };
      let fault = "";
      try {
        const found = await tile(this.trace, this.layer, this.head, place.z, place.x, place.y, stop.signal);
        this.held.set(name, { ...found, picture: paint(found) });
        for (const old of this.held.keys()) if (this.held.size > KEPT) this.held.delete(old); else break;
      } catch (error) {
        if (stop.signal.aborted) continue; // what is wanted now is another
        fault = error instanceof Error ? error.message : String(error);
      } finally { this.asked = null; }
      this.wanted = this.wanted.filter((p) => nameOf(p) !== name);
      this.changed(fault);
    }
  }

  private touch(name: string): void {
    const found = this.held.get(name);
    if (found) { this.held.delete(name); this.held.set(name, found); }
  }
}

function paint(t: Tile): HTMLCanvasElement {
  // A root, so that faint weights show; the numbers beside are the weights themselves.
  const colours = Uint32Array.from({ length: 256 }, (_, i) => COLOURS[Math.round(255 * Math.sqrt((i / 255) * Math.min(t.scale, 1)))]);
  const picture = document.createElement("canvas");
  picture.width = t.columns; picture.height = t.rows;
  const image = new ImageData(t.columns, t.rows), pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[t.cells[i]];
  picture.getContext("2d")!.putImageData(image, 0, 0);
  return picture;
}

/** The weight in the finest tile that is there of these levels, and the level; null: none has come. */
export function weightAt(tiles: Tiles, query: number, key: number, levels: number[]): { weight: number; z: number } | null {
  for (const z of levels) {
    const r = Math.floor(query / 2 ** z), c = Math.floor(key / 2 ** z);
    const t = tiles.get({ z, x: Math.floor(c / CELLS), y: Math.floor(r / CELLS) });
    if (t) return { weight: (t.cells[(r % CELLS) * t.columns + (c % CELLS)] / 255) * t.scale, z };
  }
  return null;
}
