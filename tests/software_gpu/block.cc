#include "tests/software_gpu/block.h"

#include <algorithm>
#include <cstring>

#include "tests/software_gpu/cuda.h"

namespace software_gpu {

namespace {
Block* running = nullptr;  // one launch at a time
}

Position thread_index, block_index, block_size, grid_size;
unsigned char* dynamic_shared = nullptr;

Block::Block(unsigned threads) : threads_(threads), warps_((threads + 31) / 32) {
  for (auto& values : all_.brought) values.resize(threads);
  for (Meeting& warp : warps_)
    for (auto& values : warp.brought) values.resize(32);
}

std::string Block::Run(unsigned number, void (*run)()) {
  running = this;
  run_ = run;
  backwards_ = !backwards_;
  block_index = {number, 0, 0};
  for (Thread& thread : threads_) thread.ended = false;
  const auto has_ended = [](const Thread& thread) { return thread.ended; };
  while (failure_.empty() && !std::ranges::all_of(threads_, has_ended))
    if (!Turn() && failure_.empty()) failure_ = Stuck();
  return failure_;
}

bool Block::Turn() {
  bool any = false;
  const auto last = static_cast<unsigned>(threads_.size()) - 1;
  for (unsigned i = 0; i <= last && failure_.empty(); ++i) {
    const unsigned thread = backwards_ ? last - i : i;
    if (!threads_[thread].CanRun()) continue;
    any = true;
    Resume(thread);
  }
  return any;
}

void Block::Resume(unsigned number) {
  Thread& thread = threads_[number];
  now_ = number;
  thread_index = {number, 0, 0};
  thread.meeting = nullptr;
  if (thread.stack == nullptr) {
    if (spare_.empty()) spare_.push_back(std::make_unique<Stack>());
    thread.stack = std::move(spare_.back());
    spare_.pop_back();
    thread.stack->Begin(Begin);
  }
  thread.stack->Resume();
  if (thread.ended) spare_.push_back(std::move(thread.stack));
}

void Block::Begin() {
  running->run_();
  Thread& thread = running->threads_[running->now_];
  thread.ended = true;
  thread.stack->GiveWay();
}

const Word* Block::Meet(Meeting& meeting, const char* what, unsigned place, Word value) {
  const unsigned generation = meeting.generation;
  auto& brought = meeting.brought[generation % 2];
  if (meeting.arrived != 0 && std::strcmp(meeting.what, what) != 0)
    Fail(std::string("is at ") + what + ", others it shares a warp or block with at " + meeting.what);
  meeting.what = what;
  brought[place] = value;
  if (++meeting.arrived == brought.size()) {
    meeting.arrived = 0;
    ++meeting.generation;
    return brought.data();
  }
  Thread& thread = threads_[now_];
  thread.meeting = &meeting;
  thread.generation = generation;
  thread.stack->GiveWay();
  return brought.data();
}

void Block::Fail(const std::string& what) {
  failure_ = "thread " + std::to_string(now_) + " " + what;
  for (;;) threads_[now_].stack->GiveWay();
}

std::string Block::Stuck() const {
  std::string text = "threads wait for ever:";
  for (unsigned i = 0; i < threads_.size(); ++i) {
    const Thread& thread = threads_[i];
    const std::string where = thread.ended ? "has ended" : std::string("waits at ") + thread.meeting->what;
    const bool as_before = i > 0 && threads_[i - 1].ended == thread.ended && threads_[i - 1].meeting == thread.meeting;
    if (!as_before) text += " from " + std::to_string(i) + " " + where + ";";
  }
  return text;
}

const unsigned long long* MeetWarp(const char* what, unsigned mask, unsigned long long value) {
  if (mask != 0xFFFFFFFFu) Fail("leaves lanes of its warp out");
  if (running->threads() % 32 != 0) Fail("is in a block of no whole number of warps");
  return running->Meet(running->WarpOf(thread_index.x), what, thread_index.x % 32, value);
}

const unsigned long long* MeetBlock(const char* what, unsigned long long value) {
  return running->Meet(running->all(), what, thread_index.x, value);
}

void Fail(const char* what) { running->Fail(what); }

}  // namespace software_gpu
