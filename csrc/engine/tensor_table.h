// The tensors that an engine was told of, by their ids, and the codecs that they use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/engine/coding/coding.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/staging/staging.h"

namespace byteps_like {

struct PartitionSpec {
  uint64_t key = 0;
  uint64_t offset = 0;  // bytes from the start of the tensor
  uint32_t bytes = 0;
  uint32_t channel = 0;  // index of its ShardAddress
  bool absent = false;   // other ranks bring it and get its result: this one only takes part, so that rounds are whole
  ShardNumber owner = {};  // of the sum, where the channel leads to an aggregator
};

struct DeclaredTensor {
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<std::unique_ptr<Coding>> codings;    // of each part, or none
  std::vector<std::unique_ptr<Staging>> stagings;  // of each part, once it has been on the GPU
  bool kept = false;                               // servers keep its value: it has no rounds
  bool reserved = false;                           // the stager has memory for its codings

  // Nothing refers to its partitions any more: not a queue, which may still hold one that was given up, and not the
  // stager.
  bool idle() const;
};

// Under the engine's mutex, all of it. Tensors, and texts of codecs, stay where they are.
class TensorTable {
 public:
  // Parts of each refer to the channel that has the index in `channels`. Returns the id.
  uint32_t Add(DType dtype, const std::vector<PartitionSpec>& partitions,
               const std::vector<std::unique_ptr<Channel>>& channels);
  // Gives the tensor's parts a codec. Their sizes are whole elements, and were checked (CheckCoded).
  void Encode(uint32_t id, const CodecUse& use);
  void Remove(uint32_t id);  // an idle tensor; its id is given to another one soon

  DeclaredTensor& at(uint32_t id) { return tensors_.at(id); }
  const DeclaredTensor& at(uint32_t id) const { return tensors_.at(id); }
  const std::deque<DeclaredTensor>& all() const { return tensors_; }  // those that are held no more are empty
  size_t size() const { return tensors_.size() - vacant_.size(); }    // that something is held for
  const std::string& CodecText(uint32_t number) const { return codecs_[number].text; }

 private:
  uint32_t NumberOf(const CodecUse& use);

  std::deque<DeclaredTensor> tensors_;
  std::vector<uint32_t> vacant_;  // ids of those that are held no more
  std::deque<CodecUse> codecs_;   // by their numbers on every link
};

// Whether partitions like these can be encoded by the codec in a world of so many, and what is wrong: kInvalid.
Status CheckCoded(const std::vector<PartitionSpec>& partitions, const CodecUse& use, uint32_t world);

}  // namespace byteps_like
