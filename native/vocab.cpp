// Law: exact. What is pruned can never fire; everything else is kept in the converter's order.
#include "vocab.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>

namespace pellucid {
namespace {

// Hashes of every substring in O(1): a polynomial modulo 2^61 - 1 whose base is drawn at run time, so that no
// vocabulary can be made to collide.
constexpr std::uint64_t kModulus = (std::uint64_t{1} << 61) - 1;

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  const std::uint64_t sum =
      static_cast<std::uint64_t>(product & kModulus) + static_cast<std::uint64_t>(product >> 61);
  return sum >= kModulus ? sum - kModulus : sum;
}

struct Hasher {
  std::uint64_t base;
  std::vector<std::uint64_t> powers{1};

  void reserve(std::size_t longest) {
    while (powers.size() <= longest) powers.push_back(multiply(powers.back(), base));
  }
  std::uint64_t extend(std::uint64_t hash, unsigned char byte) const {
    const std::uint64_t next = multiply(hash, base) + byte + 1;
    return next >= kModulus ? next - kModulus : next;
  }
  // Hash of bytes [from, to) given the hashes of the prefixes that end there.
  std::uint64_t between(std::uint64_t at_from, std::uint64_t at_to, std::size_t length) const {
    const std::uint64_t shifted = multiply(at_from, powers[length]);
    return at_to >= shifted ? at_to - shifted : at_to + kModulus - shifted;
  }
};

// Piece to id by hash; a bitmap that fits the cache answers most of the misses.
class Table {
 public:
  Table(const std::vector<std::string>& pieces, const std::vector<std::uint8_t>& mergeable,
        const Hasher& hasher)
      : pieces_(pieces) {
    std::size_t size = 16;
    while (size < pieces.size() * 2) size *= 2;
    slots_.assign(size, Slot{0, -1});
    bitmap_.assign(size / 16, 0);
    for (std::size_t id = 0; id < pieces.size(); ++id) {
      if (!mergeable[id]) continue;
      std::uint64_t hash = 0;
      for (const char c : pieces[id]) hash = hasher.extend(hash, static_cast<unsigned char>(c));
      if (find(hash, pieces[id]) >= 0) continue;  // a piece that occurs twice: the lower id stands
      bitmap_[bit(hash) / 64] |= std::uint64_t{1} << (bit(hash) % 64);
      std::size_t at = slot(hash);
      while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = Slot{hash, static_cast<std::int32_t>(id)};
    }
  }

  std::int32_t find(std::uint64_t hash, std::string_view text) const {
    if (!(bitmap_[bit(hash) / 64] >> (bit(hash) % 64) & 1)) return -1;
    for (std::size_t at = slot(hash); slots_[at].id >= 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == hash && pieces_[static_cast<std::size_t>(slots_[at].id)] == text)
        return slots_[at].id;
    }
    return -1;
  }

 private:
  struct Slot {
    std::uint64_t hash;
    std::int32_t id;
  };
  std::size_t slot(std::uint64_t hash) const { return (hash ^ hash >> 29) & (slots_.size() - 1); }
  std::size_t bit(std::uint64_t hash) const { return hash >> 23 & (bitmap_.size() * 64 - 1); }

  const std::vector<std::string>& pieces_;
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> bitmap_;
};

struct Merge {
  float score;
  std::int32_t left_length, right_length;  // in code points
  std::int32_t result, left, right;        // ids

  bool before(const Merge& other) const {
    if (score != other.score) return score > other.score;
    if (left_length != other.left_length) return left_length > other.left_length;
    if (right_length != other.right_length) return right_length > other.right_length;
    if (result != other.result) return result < other.result;
    return left != other.left ? left < other.left : right < other.right;
  }
};

// One piece under study: its code points' borders and the hashes of its prefixes.
struct Study {
  const Table& table;
  const Hasher& hasher;
  std::string_view text;
  std::vector<std::size_t> borders;
  std::vector<std::uint64_t> hashes;

  void open(std::string_view piece) {
    text = piece;
    borders.clear();
    hashes.clear();
    std::uint64_t hash = 0;
    for (std::size_t at = 0; at <= text.size(); ++at) {
      const bool inside = at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
      if (at == 0 || !inside) {
        borders.push_back(at);
        hashes.push_back(hash);
      }
      if (at < text.size()) hash = hasher.extend(hash, static_cast<unsigned char>(text[at]));
    }
  }
  std::size_t length() const { return borders.size() - 1; }
  // Id of code points [from, to), or -1.
  std::int32_t id(std::size_t from, std::size_t to) const {
    const std::size_t bytes = borders[to] - borders[from];
    return table.find(hasher.between(hashes[from], hashes[to], bytes), text.substr(borders[from], bytes));
  }
};

constexpr std::size_t kLongest = 64;  // code points; longer pieces keep all their pairs, which is exact too

// The one split by which BPE, given the piece's own text, makes the piece; 0 if it makes something else.
std::size_t final_split(const Study& study, const std::vector<float>& scores) {
  const std::size_t n = study.length();
  std::size_t starts[kLongest + 1];
  std::int32_t ids[kLongest];
  Merge pairs[kLongest];  // pairs[i] joins symbols i and i + 1; result -1 where they do not join
  std::size_t count = n;
  for (std::size_t i = 0; i < n; ++i) {
    starts[i] = i;
    ids[i] = study.id(i, i + 1);
    if (ids[i] < 0) return 0;
  }
  starts[n] = n;
  const auto look = [&](std::size_t i) {
    const std::int32_t result = study.id(starts[i], starts[i + 2]);
    const float score = result < 0 ? 0.0F : scores[static_cast<std::size_t>(result)];
    pairs[i] = Merge{score,
                     static_cast<std::int32_t>(starts[i + 1] - starts[i]),
                     static_cast<std::int32_t>(starts[i + 2] - starts[i + 1]),
                     result,
                     ids[i],
                     ids[i + 1]};
  };
  for (std::size_t i = 0; i + 1 < n; ++i) look(i);
  while (count > 1) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i].result >= 0 && (best == count || pairs[i].before(pairs[best]))) best = i;
    }
    if (best == count) return 0;
    if (count == 2) return starts[1];
    ids[best] = pairs[best].result;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      starts[i] = starts[i + 1];
      pairs[i] = pairs[i + 1];
    }
    starts[count - 1] = n;
    --count;
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  return 0;
}

// The merges of pieces [from, to).
std::vector<Merge> merges_of(std::size_t from, std::size_t to, const std::vector<std::string>& pieces,
                             const std::vector<float>& scores, const std::vector<std::uint8_t>& mergeable,
                             const Table& table, const Hasher& hasher) {
  std::vector<Merge> merges;
  merges.reserve(to - from);
  Study study{table, hasher, {}, {}, {}};
  std::vector<Merge> splits;
  for (std::size_t id = from; id < to; ++id) {
    if (!mergeable[id]) continue;
    study.open(pieces[id]);
    const std::size_t n = study.length();
    splits.clear();
    for (std::size_t cut = 1; cut < n; ++cut) {
      const std::int32_t left = study.id(0, cut);
      if (left < 0) continue;
      const std::int32_t right = study.id(cut, n);
      if (right < 0) continue;
      splits.push_back(Merge{scores[id], static_cast<std::int32_t>(cut), static_cast<std::int32_t>(n - cut),
                             static_cast<std::int32_t>(id), left, right});
    }
    if (splits.size() > 1 && n <= kLongest) {
      const auto wanted = static_cast<std::int32_t>(final_split(study, scores));
      for (const Merge& split : splits) {
        if (split.left_length == wanted) merges.push_back(split);
      }
    } else {
      merges.insert(merges.end(), splits.begin(), splits.end());
    }
  }
  return merges;
}

}  // namespace

Merges spm_merges(const std::vector<std::string>& pieces, const std::vector<float>& scores,
                  const std::vector<std::uint8_t>& mergeable) {
  std::random_device device;
  Hasher hasher{(std::uint64_t{device()} << 28 ^ device()) % (kModulus - 1024) + 512};
  std::size_t longest = 0;
  for (const std::string& piece : pieces) longest = std::max(longest, piece.size());
  hasher.reserve(longest);
  const Table table(pieces, mergeable, hasher);

  // Pieces are independent of one another: two threads, the second from the middle.
  const std::size_t middle = pieces.size() / 2;
  std::vector<Merge> second;
  std::thread helper(
      [&] { second = merges_of(middle, pieces.size(), pieces, scores, mergeable, table, hasher); });
  std::vector<Merge> merges = merges_of(0, middle, pieces, scores, mergeable, table, hasher);
  helper.join();
  merges.insert(merges.end(), second.begin(), second.end());
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.before(b); });

  Merges out;
  out.left.reserve(merges.size());
  out.right.reserve(merges.size());
  for (const Merge& merge : merges) {
    out.left.push_back(merge.left);
    out.right.push_back(merge.right);
  }
  return out;
}

}  // namespace pellucid
