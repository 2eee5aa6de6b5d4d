#include "csrc/engine/coding/coder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/base/thread.h"
#include "csrc/base/trace.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/staging/staging.h"

namespace byteps_like {
namespace {

Status Stopped() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }

std::span<float> Elements(const Coding& coding) { return {coding.x, coding.numel}; }

void TraceCoding(TraceKind kind, const Part& part, int64_t begin, uint64_t bytes, const Draw& draw) {
  TraceSince(begin, {.kind = kind,
                     .key = part.key,
                     .bytes = bytes,
                     .round = draw.round,
                     .priority = part.priority,
                     .member = draw.rank});
}

}  // namespace

Result<std::unique_ptr<Coder>> Coder::Start(PartSink& sink, uint32_t threads) {
  std::unique_ptr<Coder> coder(new Coder(sink));
  for (uint32_t i = 0; i < std::max(threads, 1u); ++i) {
    auto thread = StartThread("to encode with", [coder = coder.get()] { coder->Work(); });
    if (!thread.ok() && i == 0) return thread.status();
    if (!thread.ok()) break;
    coder->threads_.push_back(std::move(*thread));
  }
  return coder;
}

Coder::~Coder() { Stop(); }

void Coder::Stop() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (Thread& thread : threads_) thread.join();
  threads_.clear();
  for (; !queue_.empty(); queue_.pop()) End(*queue_.top().coding, Stopped());
}

void Coder::Begin(Coding& coding) { Queue(coding, CodingStage::kBegin); }

void Coder::Landed(Part& part, const Status& status) {
  Coding& coding = *part.coding;
  if (!status.ok()) return End(coding, status);
  Queue(coding, &part == coding.part ? CodingStage::kDecode : CodingStage::kEncode);
}

void Coder::Queue(Coding& coding, CodingStage stage) {
  {
    std::lock_guard lock(mutex_);
    if (!ending_) {
      coding.stage = stage;
      queue_.push({coding.part->priority, stage, order_++, &coding});
      changed_.notify_one();
      return;
    }
  }
  End(coding, Stopped());
}

void Coder::Work() {
  PooledBuffer own;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (ending_) break;
    Coding& coding = *queue_.top().coding;
    queue_.pop();
    lock.unlock();
    Step(coding, own);
    lock.lock();
  }
  lock.unlock();
  pool_.Give(own);
}

void Coder::Step(Coding& coding, PooledBuffer& own) {
  switch (coding.stage) {
    case CodingStage::kBegin:
      if (Tracing() && (coding.part->staging == nullptr || !coding.part->staging->active))
        TraceCoding(TraceKind::kReady, *coding.part, coding.part->traced.ready, coding.part->bytes, coding.draw);
      Compensate(coding.feedback, coding.scale, coding.x, coding.numel);
      return coding.prelude ? Prepare(coding) : Encode(coding, own);
    case CodingStage::kEncode:
      return Encode(coding, own);
    case CodingStage::kDecode:
      return Decode(coding, own);
  }
}

std::byte* Coder::Workspace(const Coding& coding, PooledBuffer& own) {
  if (coding.workspace.data != nullptr) return coding.workspace.data;
  if (own.bytes < coding.plan.workspace) {
    pool_.Give(own);
    own = pool_.Take(coding.plan.workspace);
  }
  return own.data;
}

// Prepare leaves its results in the workspace for Encode, which may run on another thread.
void Coder::Prepare(Coding& coding) {
  const int64_t begin = Tracing() ? TraceClock() : 0;
  coding.workspace = pool_.Take(coding.plan.workspace);
  coding.agreed = pool_.Take(coding.plan.prelude);
  coding.codec->Prepare(Elements(coding), coding.draw, coding.workspace.data, coding.agreed.data);
  bytes_out_ += coding.plan.prelude;
  Part& prelude = *coding.prelude;
  prelude.address = coding.agreed.data;
  prelude.priority = coding.part->priority;
  if (Tracing()) TraceCoding(TraceKind::kEncoded, prelude, begin, prelude.total, coding.draw);
  prelude.traced = {Tracing() ? TraceClock() : 0, 0, 0};
  sink_.Hand(prelude);
}

void Coder::Encode(Coding& coding, PooledBuffer& own) {
  const int64_t begin = Tracing() ? TraceClock() : 0;
  const uint32_t head = coding.head();
  const uint32_t own_result = coding.merges() ? 0 : coding.plan.result;
  coding.payload = pool_.Take(head + std::max(coding.plan.payload, own_result));
  if (coding.merges()) coding.result = pool_.Take(head + coding.plan.result);
  std::byte* const body = coding.payload.data + head;
  std::byte* const workspace = Workspace(coding, own);
  const auto x = Elements(coding);
  const uint32_t bytes = coding.codec->Encode(x, coding.draw, coding.agreed.data, workspace, body);
  if (float* const residual = coding.feedback.residual)
    coding.codec->Residual(x, coding.draw, coding.agreed.data, workspace, {body, bytes}, residual);
  Settle(coding.feedback, coding.x, coding.numel);
  pool_.Give(coding.workspace);
  if (head != 0)
    EncodePayloadHeader({.codec = coding.codec->id(), .numel = coding.numel, .spec = coding.spec_crc},
                        coding.payload.data);
  Part& part = *coding.part;
  part.address = coding.payload.data;
  part.total = head + bytes;
  bytes_in_ += part.bytes;
  bytes_out_ += part.total;
  if (Tracing()) TraceCoding(TraceKind::kEncoded, part, begin, part.total, coding.draw);
  part.traced = {Tracing() ? TraceClock() : 0, 0, 0};
  sink_.Hand(part);
}

void Coder::Decode(Coding& coding, PooledBuffer& own) {
  const int64_t begin = Tracing() ? TraceClock() : 0;
  const Status status = DecodeResult(coding, Workspace(coding, own));
  if (Tracing()) TraceCoding(TraceKind::kDecoded, *coding.part, begin, coding.part->expected, coding.draw);
  if (status.ok()) return End(coding, status);
  const Status told(status.code(), "rank " + std::to_string(coding.draw.rank) + ": the result of key " +
                                       std::to_string(coding.part->key) + " round " +
                                       std::to_string(coding.draw.round) + " is wrong: " + status.message());
  End(coding, told);
  sink_.Fail(told.code(), told.message());
}

Status Coder::DecodeResult(Coding& coding, std::byte* workspace) {
  const Part& part = *coding.part;
  const bool average = coding.op == Op::kAverage;
  Bytes body{coding.landing().data, part.expected};
  uint32_t count = 0;
  const bool divide = average && (!coding.dense() || !IsFloat(*coding.plan.dense));  // else the server has done it
  if (!coding.dense()) {
    auto header = DecodePayloadHeader(body);
    if (!header.ok()) return header.status();
    if (header->codec != coding.codec->id() || header->spec != coding.spec_crc || header->numel != coding.numel)
      return Status(Code::kCorrupt, "it is not of codec " + coding.codec->spec());
    count = header->count;
    body = body.subspan(kPayloadHeader);
  }
  const auto decode = [&](uint32_t contributors, std::span<float> out) {
    const float factor = divide ? 1.0f / static_cast<float>(contributors) : 1.0f;
    return coding.codec->Decode(body, contributors, coding.draw, coding.agreed.data, workspace, factor, out);
  };
  return coding.dense() ? DecodeInParts(coding, decode) : decode(count, Elements(coding));
}

// Of a sum of numbers no header counts the contributions, and ranks may have brought a part of theirs: rare enough for
// one more pass over all of it for each such part.
Status Coder::DecodeInParts(Coding& coding, const DecodeAs& decode) {
  const std::vector<Absence>& absences = coding.part->absences;
  const auto contributors = [&](uint32_t at) { return ContributorsAt(absences, coding.codec->world(), at); };
  const std::span<float> out = Elements(coding);
  if (Status decoded = decode(contributors(0), out); !decoded.ok()) return decoded;
  for (const uint32_t cut : CutsOf(absences)) {
    std::vector<float> rest(out.size());
    if (Status decoded = decode(contributors(cut), rest); !decoded.ok()) return decoded;
    const size_t begin = cut / SizeOf(*coding.plan.dense);
    std::ranges::copy(rest.begin() + static_cast<ptrdiff_t>(begin), rest.end(),
                      out.begin() + static_cast<ptrdiff_t>(begin));
  }
  return {};
}

void Coder::End(Coding& coding, const Status& status) {
  pool_.Give(coding.payload);
  pool_.Give(coding.result);
  pool_.Give(coding.agreed);
  pool_.Give(coding.workspace);
  coding.active = false;
  sink_.Returned(*coding.part, status);
}

}  // namespace byteps_like
