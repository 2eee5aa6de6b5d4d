// Faults for the tests of RDMA: of the cables of the virtual machine, and of another process.
#pragma once

#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

namespace byteps_like::testing {

// Whether this is the machine of scripts/rdma_vm.sh, whose devices are the ends of two cables.
inline bool HasCables() { return std::getenv("RDMA_VM") != nullptr; }

// "loss 5%", "loss 100%": of both cables, in both directions, as long as this lives. Needs HasCables.
class CableFault {
 public:
  explicit CableFault(const std::string& fault) { REQUIRE(Run("add", " netem " + fault) == 0); }
  ~CableFault() { Run("del", ""); }
  CableFault(const CableFault&) = delete;

 private:
  // At once: a process takes its time in the machine.
  static int Run(const std::string& what, const std::string& rest) {
    std::string lines;
    for (const char* end : {"rd0", "rd1", "rd2", "rd3"})
      lines += "qdisc " + what + " dev " + end + " root" + rest + "\\n";
    return std::system(("printf '%b' '" + lines + "' | tc -batch -").c_str());
  }
};

inline constexpr char kOtherProcess[] = "BYTEPS_LIKE_TEST_OTHER_PROCESS";

// Another process of these tests, which runs one test case (that all others skip) with an address to connect to in its
// environment. It is begun anew, not forked: devices and registered memory do not survive a fork.
class OtherProcess {
 public:
  OtherProcess(const std::string& url, const std::string& test_case) {
    const std::string chosen = "-tc=" + test_case;
    std::vector<std::string> words{std::string(kOtherProcess) + "=" + url};
    for (char** word = environ; *word != nullptr; ++word) words.emplace_back(*word);
    std::vector<char*> environment;
    for (std::string& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    const char* arguments[] = {"native_tests", chosen.c_str(), "--no-skip", "--out=/dev/null", nullptr};
    REQUIRE(::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments),
                          environment.data()) == 0);
  }
  ~OtherProcess() { Kill(); }
  OtherProcess(const OtherProcess&) = delete;
  void Kill() {  // returns when it is gone
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void Continue() { ::kill(pid_, SIGCONT); }
  void Stop() {  // returns when it has
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace byteps_like::testing
