#include "csrc/transport/rdma/verbs/verbs.h"

#include <dlfcn.h>

#include <iterator>

namespace byteps_like::verbs {
namespace {

constexpr char kVerbsLibrary[] = "libibverbs.so.1";
constexpr char kCmLibrary[] = "librdmacm.so.1";

struct Symbol {
  const char* name;
  void* place;  // a pointer to function in the table
  bool optional = false;
};

Status Fill(void* library, const char* file, std::initializer_list<Symbol> symbols) {
  for (const Symbol& symbol : symbols) {
    void* const found = ::dlsym(library, symbol.name);
    if (found == nullptr && !symbol.optional) {
      return Status(Code::kSystem, std::string(file) + " has no " + symbol.name + ": it is older than rdma-core 20");
    }
    *static_cast<void**>(symbol.place) = found;
  }
  return {};
}

Result<void*> Open(const char* file) {
  if (void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  const char* const why = ::dlerror();
  return Status(Code::kSystem, std::string(why == nullptr ? file : why) +
                                   " (install rdma-core: Debian's packages are ibverbs-providers and librdmacm1)");
}

Status FillVerbs(void* library, Library* to) {
  return Fill(library, kVerbsLibrary,
              {{"ibv_fork_init", &to->fork_init},
               {"ibv_get_device_list", &to->get_device_list},
               {"ibv_free_device_list", &to->free_device_list},
               {"ibv_open_device", &to->open_device},
               {"ibv_close_device", &to->close_device},
               {"ibv_query_port", &to->query_port},
               {"ibv_query_gid", &to->query_gid},
               {"_ibv_query_gid_ex", &to->query_gid_ex, true},
               {"ibv_alloc_pd", &to->alloc_pd},
               {"ibv_dealloc_pd", &to->dealloc_pd},
               {"ibv_reg_mr", &to->reg_mr},
               {"ibv_reg_dmabuf_mr", &to->reg_dmabuf_mr, true},
               {"ibv_dereg_mr", &to->dereg_mr},
               {"ibv_create_comp_channel", &to->create_comp_channel},
               {"ibv_destroy_comp_channel", &to->destroy_comp_channel},
               {"ibv_create_cq", &to->create_cq},
               {"ibv_destroy_cq", &to->destroy_cq},
               {"ibv_get_cq_event", &to->get_cq_event},
               {"ibv_ack_cq_events", &to->ack_cq_events},
               {"ibv_create_qp", &to->create_qp},
               {"ibv_modify_qp", &to->modify_qp},
               {"ibv_destroy_qp", &to->destroy_qp}});
}

Status FillCm(void* library, Library* to) {
  return Fill(library, kCmLibrary,
              {{"rdma_create_event_channel", &to->cm_create_event_channel},
               {"rdma_destroy_event_channel", &to->cm_destroy_event_channel},
               {"rdma_create_id", &to->cm_create_id},
               {"rdma_destroy_id", &to->cm_destroy_id},
               {"rdma_bind_addr", &to->cm_bind_addr},
               {"rdma_resolve_addr", &to->cm_resolve_addr},
               {"rdma_resolve_route", &to->cm_resolve_route},
               {"rdma_init_qp_attr", &to->cm_init_qp_attr},
               {"rdma_connect", &to->cm_connect},
               {"rdma_establish", &to->cm_establish},
               {"rdma_listen", &to->cm_listen},
               {"rdma_accept", &to->cm_accept},
               {"rdma_reject", &to->cm_reject},
               {"rdma_disconnect", &to->cm_disconnect},
               {"rdma_get_cm_event", &to->cm_get_event},
               {"rdma_ack_cm_event", &to->cm_ack_event},
               {"rdma_migrate_id", &to->cm_migrate_id},
               {"rdma_get_src_port", &to->cm_get_src_port}});
}

struct Loaded {
  Library library{};
  Status status;
};

// Never unloaded: threads may be inside until the process ends.
const Loaded& LoadOnce() {
  static const Loaded* const loaded = [] {
    auto* const made = new Loaded();
    auto verbs = Open(kVerbsLibrary);
    auto cm = verbs.ok() ? Open(kCmLibrary) : Result<void*>(verbs.status());
    made->status = cm.status();
    if (made->status.ok()) made->status = FillVerbs(*verbs, &made->library);
    if (made->status.ok()) made->status = FillCm(*cm, &made->library);
    // Before Linux 5.12 a fork (a DataLoader's workers) would leave the device with the pages of the child. It fails if
    // another library of this process has registered memory before, which then has decided about this.
    if (made->status.ok()) made->library.fork_init();
    return made;
  }();
  return *loaded;
}

struct Wording {
  const char* name;
  const char* meaning;
};

constexpr char kGone[] = "the peer's device did not acknowledge: the peer is gone or the path is broken";
constexpr char kOurs[] = "one of our work requests was invalid: a bug, or a device that lacks a feature it reports";
constexpr char kTheirs[] =
    "the peer's device refused the operation: its memory was withdrawn, or the queue pair is gone";

constexpr Wording kWordings[] = {{"IBV_WC_SUCCESS", "success"},
                                 {"IBV_WC_LOC_LEN_ERR", "a message is longer than the buffer for it"},
                                 {"IBV_WC_LOC_QP_OP_ERR", kOurs},
                                 {"IBV_WC_LOC_EEC_OP_ERR", kOurs},
                                 {"IBV_WC_LOC_PROT_ERR", "our memory is not registered (any more)"},
                                 {"IBV_WC_WR_FLUSH_ERR", "the queue pair is in error, so what was queued is dropped"},
                                 {"IBV_WC_MW_BIND_ERR", kOurs},
                                 {"IBV_WC_BAD_RESP_ERR", "the peer's device gave an invalid answer"},
                                 {"IBV_WC_LOC_ACCESS_ERR", "the peer wrote to memory that it may not access"},
                                 {"IBV_WC_REM_INV_REQ_ERR", kTheirs},
                                 {"IBV_WC_REM_ACCESS_ERR", "the peer's memory is not accessible to us (any more)"},
                                 {"IBV_WC_REM_OP_ERR", kTheirs},
                                 {"IBV_WC_RETRY_EXC_ERR", kGone},
                                 {"IBV_WC_RNR_RETRY_EXC_ERR", "the peer posted no receive for too long"},
                                 {"IBV_WC_LOC_RDD_VIOL_ERR", kOurs},
                                 {"IBV_WC_REM_INV_RD_REQ_ERR", kTheirs},
                                 {"IBV_WC_REM_ABORT_ERR", kTheirs},
                                 {"IBV_WC_INV_EECN_ERR", kOurs},
                                 {"IBV_WC_INV_EEC_STATE_ERR", kOurs},
                                 {"IBV_WC_FATAL_ERR", "the device has failed"},
                                 {"IBV_WC_RESP_TIMEOUT_ERR", kGone},
                                 {"IBV_WC_GENERAL_ERR", "the device gives no further reason"}};

constexpr const char* kCmEvents[] = {
    "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
    "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
    "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
    "RDMA_CM_EVENT_TIMEWAIT_EXIT"};

const Wording& WordingOf(WcStatus status) {
  static constexpr Wording kUnknown = {"an unknown status", "see the device's documentation"};
  const auto at = static_cast<size_t>(status);
  return at < std::size(kWordings) ? kWordings[at] : kUnknown;
}

}  // namespace

Result<const Library*> Load() {
  const Loaded& loaded = LoadOnce();
  if (!loaded.status.ok()) return loaded.status;
  return &loaded.library;
}

const Library& Lib() { return LoadOnce().library; }

const char* NameOf(WcStatus status) { return WordingOf(status).name; }
const char* MeaningOf(WcStatus status) { return WordingOf(status).meaning; }

const char* NameOf(CmEventType event) {
  const auto at = static_cast<size_t>(event);
  return at < std::size(kCmEvents) ? kCmEvents[at] : "an unknown event";
}

}  // namespace byteps_like::verbs
