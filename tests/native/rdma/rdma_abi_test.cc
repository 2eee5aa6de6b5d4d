// Our own declaration of the verbs' ABI against the installed headers, where there are some. All of it at compile time.
#include <doctest/doctest.h>

#if __has_include(<rdma/rdma_cma.h>)
#include <rdma/rdma_cma.h>

#include "csrc/transport/rdma/verbs/verbs_abi.h"

namespace byteps_like::verbs {

template <typename Ours, typename Theirs>
constexpr bool kSame = sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);

#define SAME_SIZE(ours, theirs) static_assert(kSame<ours, theirs>, #theirs)
#define SAME_PLACE(ours, theirs, field) \
  static_assert(offsetof(ours, field) == offsetof(theirs, field), #theirs "." #field)

SAME_SIZE(Device, ibv_device);
SAME_PLACE(Device, ibv_device, name);
SAME_PLACE(Device, ibv_device, transport_type);
SAME_PLACE(Device, ibv_device, ibdev_path);
SAME_SIZE(ContextOps, ibv_context_ops);
SAME_PLACE(ContextOps, ibv_context_ops, poll_cq);
SAME_PLACE(ContextOps, ibv_context_ops, req_notify_cq);
SAME_PLACE(ContextOps, ibv_context_ops, post_send);
SAME_PLACE(ContextOps, ibv_context_ops, post_recv);
SAME_SIZE(Context, ibv_context);
SAME_PLACE(Context, ibv_context, ops);
SAME_PLACE(Context, ibv_context, async_fd);
SAME_PLACE(Context, ibv_context, num_comp_vectors);
SAME_SIZE(Pd, ibv_pd);
SAME_SIZE(Mr, ibv_mr);
SAME_PLACE(Mr, ibv_mr, lkey);
SAME_PLACE(Mr, ibv_mr, rkey);
SAME_SIZE(CompChannel, ibv_comp_channel);
SAME_PLACE(CompChannel, ibv_comp_channel, fd);
SAME_PLACE(Cq, ibv_cq, channel);
SAME_PLACE(Cq, ibv_cq, cqe);
SAME_PLACE(Qp, ibv_qp, qp_num);
SAME_PLACE(Qp, ibv_qp, qp_type);
SAME_SIZE(QpCap, ibv_qp_cap);
SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
SAME_PLACE(QpInitAttr, ibv_qp_init_attr, cap);
SAME_PLACE(QpInitAttr, ibv_qp_init_attr, sq_sig_all);
SAME_SIZE(Gid, ibv_gid);
SAME_SIZE(GlobalRoute, ibv_global_route);
SAME_SIZE(AhAttr, ibv_ah_attr);
SAME_SIZE(QpAttr, ibv_qp_attr);
SAME_PLACE(QpAttr, ibv_qp_attr, path_mtu);
SAME_PLACE(QpAttr, ibv_qp_attr, qp_access_flags);
SAME_PLACE(QpAttr, ibv_qp_attr, ah_attr);
SAME_PLACE(QpAttr, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(QpAttr, ibv_qp_attr, timeout);
SAME_PLACE(QpAttr, ibv_qp_attr, rnr_retry);
SAME_SIZE(Sge, ibv_sge);
SAME_SIZE(SendWr, ibv_send_wr);
SAME_PLACE(SendWr, ibv_send_wr, opcode);
SAME_PLACE(SendWr, ibv_send_wr, imm_data);
SAME_PLACE(SendWr, ibv_send_wr, wr);
SAME_PLACE(SendWr, ibv_send_wr, wr.rdma.rkey);
SAME_SIZE(RecvWr, ibv_recv_wr);
SAME_SIZE(Wc, ibv_wc);
SAME_PLACE(Wc, ibv_wc, imm_data);
SAME_PLACE(Wc, ibv_wc, byte_len);
SAME_PLACE(Wc, ibv_wc, wc_flags);
SAME_SIZE(PortAttr, ibv_port_attr);
SAME_PLACE(PortAttr, ibv_port_attr, link_layer);
SAME_SIZE(GidEntry, ibv_gid_entry);
SAME_PLACE(GidEntry, ibv_gid_entry, gid_type);
SAME_SIZE(CmChannel, rdma_event_channel);
static_assert(offsetof(CmId, route.local) == offsetof(rdma_cm_id, route.addr.src_addr));
static_assert(offsetof(CmId, route.remote) == offsetof(rdma_cm_id, route.addr.dst_addr));
static_assert(offsetof(CmId, route.path_rec) == offsetof(rdma_cm_id, route.path_rec));
SAME_PLACE(CmId, rdma_cm_id, ps);
SAME_PLACE(CmId, rdma_cm_id, port_num);
SAME_SIZE(ConnParam, rdma_conn_param);
SAME_PLACE(ConnParam, rdma_conn_param, qp_num);
SAME_SIZE(CmEvent, rdma_cm_event);
SAME_PLACE(CmEvent, rdma_cm_event, param);

static_assert(int{kReliableConnection} == IBV_QPT_RC && int{kReadyToReceive} == IBV_QPS_RTR &&
              int{kError} == IBV_QPS_ERR);
static_assert(int{kMaskState} == IBV_QP_STATE && int{kMaskAccessFlags} == IBV_QP_ACCESS_FLAGS);
static_assert(int{kMaskPathMtu} == IBV_QP_PATH_MTU && int{kMaskTimeout} == IBV_QP_TIMEOUT);
static_assert(int{kMaskRetryCount} == IBV_QP_RETRY_CNT && int{kMaskRnrRetry} == IBV_QP_RNR_RETRY);
static_assert(int{kMaskMinRnrTimer} == IBV_QP_MIN_RNR_TIMER);
static_assert(int{kLocalWrite} == IBV_ACCESS_LOCAL_WRITE && int{kRemoteWrite} == IBV_ACCESS_REMOTE_WRITE);
static_assert(int{kRdmaWriteWithImm} == IBV_WR_RDMA_WRITE_WITH_IMM && int{kSendWithImm} == IBV_WR_SEND_WITH_IMM);
static_assert(unsigned{kSignaled} == IBV_SEND_SIGNALED && unsigned{kInline} == IBV_SEND_INLINE);
static_assert(int{kWcWrFlushErr} == IBV_WC_WR_FLUSH_ERR && int{kWcRetryExcErr} == IBV_WC_RETRY_EXC_ERR);
static_assert(int{kWcRnrRetryExcErr} == IBV_WC_RNR_RETRY_EXC_ERR);
static_assert(int{kWcRecv} == IBV_WC_RECV && int{kWcRecvRdmaWithImm} == IBV_WC_RECV_RDMA_WITH_IMM);
static_assert(int{kPortActive} == IBV_PORT_ACTIVE && int{kGidRoceV2} == IBV_GID_TYPE_ROCE_V2);
static_assert(int{kTimewaitExit} == RDMA_CM_EVENT_TIMEWAIT_EXIT && int{kRejected} == RDMA_CM_EVENT_REJECTED);
static_assert(int{kPortSpaceTcp} == RDMA_PS_TCP);

}  // namespace byteps_like::verbs

TEST_CASE("rdma: our declaration of the verbs' ABI is that of the installed headers") { CHECK(true); }
#else
TEST_CASE("rdma: our declaration of the verbs' ABI is that of the installed headers") {
  MESSAGE("skipped: no headers of rdma-core here");
}
#endif
