#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <iostream>
#include <mutex>
#include <string>

namespace {

// Names the cases that failed after everything else: a log of minutes is mostly read from its end.
struct FailedCases : doctest::IReporter {
  explicit FailedCases(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData& data) override { current_ = data.m_name; }
  void log_assert(const doctest::AssertData& data) override {
    if (data.m_failed) Add(std::string(data.m_file) + ":" + std::to_string(data.m_line) + ": " + data.m_decomp.c_str());
  }
  void test_case_exception(const doctest::TestCaseException& data) override { Add(data.error_string.c_str()); }
  void test_case_end(const doctest::CurrentTestCaseStats& data) override {
    if (data.failure_flags != 0 && failures_.find(current_) == std::string::npos) Add("failed");
  }
  void test_run_end(const doctest::TestRunStats&) override {
    if (!failures_.empty()) std::cerr << "What failed:\n" << failures_;
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  void Add(const std::string& what) {
    const std::lock_guard lock(mutex_);  // threads of a test assert too
    failures_ += "  " + current_ + "\n    " + what + "\n";
  }

  std::mutex mutex_;
  std::string current_, failures_;
};

REGISTER_LISTENER("failed-cases", 1, FailedCases);

}  // namespace
