// libibverbs and librdmacm, loaded when first asked for. Nothing of them is needed to build, install or start.
#pragma once

#include <string>

#include "csrc/base/status.h"
#include "csrc/transport/rdma/verbs/verbs_abi.h"

namespace byteps_like::verbs {

// Exported functions under the names that they have in the libraries, without "ibv_"; the connection manager's begin
// with "cm_" in place of "rdma_". All but `query_gid_ex` and `reg_dmabuf_mr` are always there.
struct Library {
  int (*fork_init)();
  Device** (*get_device_list)(int* count);
  void (*free_device_list)(Device** list);
  Context* (*open_device)(Device* device);
  int (*close_device)(Context* context);
  int (*query_port)(Context* context, uint8_t port, PortAttr* attr);
  int (*query_gid)(Context* context, uint8_t port, int index, Gid* gid);
  int (*query_gid_ex)(Context* context, uint32_t port, uint32_t index, GidEntry* entry, uint32_t flags, size_t size);
  Pd* (*alloc_pd)(Context* context);
  int (*dealloc_pd)(Pd* pd);
  Mr* (*reg_mr)(Pd* pd, void* addr, size_t length, int access);
  Mr* (*reg_dmabuf_mr)(Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
  int (*dereg_mr)(Mr* mr);
  CompChannel* (*create_comp_channel)(Context* context);
  int (*destroy_comp_channel)(CompChannel* channel);
  Cq* (*create_cq)(Context* context, int entries, void* cq_context, CompChannel* channel, int vector);
  int (*destroy_cq)(Cq* cq);
  int (*get_cq_event)(CompChannel* channel, Cq** cq, void** cq_context);
  void (*ack_cq_events)(Cq* cq, unsigned int count);
  Qp* (*create_qp)(Pd* pd, QpInitAttr* attr);
  int (*modify_qp)(Qp* qp, QpAttr* attr, int mask);
  int (*destroy_qp)(Qp* qp);

  CmChannel* (*cm_create_event_channel)();
  void (*cm_destroy_event_channel)(CmChannel* channel);
  int (*cm_create_id)(CmChannel* channel, CmId** id, void* context, PortSpace space);
  int (*cm_destroy_id)(CmId* id);
  int (*cm_bind_addr)(CmId* id, sockaddr* address);
  int (*cm_resolve_addr)(CmId* id, sockaddr* source, sockaddr* destination, int timeout_ms);
  int (*cm_resolve_route)(CmId* id, int timeout_ms);
  int (*cm_init_qp_attr)(CmId* id, QpAttr* attr, int* mask);
  int (*cm_connect)(CmId* id, ConnParam* param);
  int (*cm_establish)(CmId* id);
  int (*cm_listen)(CmId* id, int backlog);
  int (*cm_accept)(CmId* id, ConnParam* param);
  int (*cm_reject)(CmId* id, const void* private_data, uint8_t size);
  int (*cm_disconnect)(CmId* id);
  int (*cm_get_event)(CmChannel* channel, CmEvent** event);
  int (*cm_ack_event)(CmEvent* event);
  int (*cm_migrate_id)(CmId* id, CmChannel* channel);
  uint16_t (*cm_get_src_port)(CmId* id);
};

// The libraries, or why they can't be had: kSystem with the loader's own text and what to install. Loads once; any
// thread.
Result<const Library*> Load();
// The same once Load has succeeded.
const Library& Lib();

inline int PollCq(Cq* cq, int entries, Wc* wc) { return cq->context->ops.poll_cq(cq, entries, wc); }
inline int Arm(Cq* cq) { return cq->context->ops.req_notify_cq(cq, 0); }
inline int PostSend(Qp* qp, SendWr* wr, SendWr** bad) { return qp->context->ops.post_send(qp, wr, bad); }
inline int PostRecv(Qp* qp, RecvWr* wr, RecvWr** bad) { return qp->context->ops.post_recv(qp, wr, bad); }

const char* NameOf(WcStatus status);     // "IBV_WC_RETRY_EXC_ERR"
const char* MeaningOf(WcStatus status);  // "the peer's device did not acknowledge in time, ..."
const char* NameOf(CmEventType event);   // "RDMA_CM_EVENT_REJECTED"

}  // namespace byteps_like::verbs
