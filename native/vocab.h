// Merges of a SentencePiece vocabulary, derived from its pieces and scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pellucid {

struct Merges {
  std::vector<std::int32_t> left;   // id of the left part of each merge, best merge first
  std::vector<std::int32_t> right;  // id of the right part
};

// Every pair of pieces whose concatenation is a piece, ordered by the score of the result (higher first),
// then by the length in code points of the left part and of the right part (longer first), then by ids: the
// order of Hugging Face's converter. Only pieces with mergeable[id] != 0 take part, as results and as parts.
// Pairs that no text can ever reach are left out: a piece is only ever formed the way BPE forms it alone, so
// at most one pair for each piece fires, whatever stands beside it. Pieces must be UTF-8; the three vectors
// have one length.
Merges spm_merges(const std::vector<std::string>& pieces, const std::vector<float>& scores,
                  const std::vector<std::uint8_t>& mergeable);

}  // namespace pellucid
