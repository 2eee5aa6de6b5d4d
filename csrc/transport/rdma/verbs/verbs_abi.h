// The part of the ABI of libibverbs and librdmacm that we use, declared by ourselves: the build needs no RDMA headers,
// and the libraries are reached by dlopen (verbs.h). The layouts are frozen by those libraries' symbol versions
// (IBVERBS_1.1, RDMACM_1.0); tests/native/rdma/rdma_abi_test.cc holds them against the headers where they are
// installed.
//
// Names of fields are those of the ABI, so that its documentation (ibv_post_send(3), rdma_cm(7), ...) applies.
#pragma once

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace byteps_like::verbs {

struct Context;
struct Cq;
struct Qp;
struct RecvWr;
struct SendWr;
struct Wc;

enum TransportType : int { kTransportIb = 0 };  // RoCE too

struct Device {  // ibv_device
  void* ops[2];
  int node_type;
  int transport_type;
  char name[64];
  char dev_name[64];
  char dev_path[256];
  char ibdev_path[256];
};

struct ContextOps {  // ibv_context_ops: the most frequent calls go through it, not through exported functions
  void* compat_first[7];
  void* alloc_mw;
  void* bind_mw;
  void* dealloc_mw;
  void* compat_create_cq;
  int (*poll_cq)(Cq* cq, int num_entries, Wc* wc);
  int (*req_notify_cq)(Cq* cq, int solicited_only);
  void* compat_middle[7];
  void* post_srq_recv;
  void* compat_qp[4];
  int (*post_send)(Qp* qp, SendWr* wr, SendWr** bad_wr);
  int (*post_recv)(Qp* qp, RecvWr* wr, RecvWr** bad_wr);
  void* compat_last[5];
};

struct Context {  // ibv_context
  Device* device;
  ContextOps ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;
};

struct Pd {  // ibv_pd
  Context* context;
  uint32_t handle;
};

struct Mr {  // ibv_mr
  Context* context;
  Pd* pd;
  void* addr;
  size_t length;
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct CompChannel {  // ibv_comp_channel
  Context* context;
  int fd;
  int refcnt;
};

struct Cq {  // ibv_cq, its head
  Context* context;
  CompChannel* channel;
  void* cq_context;
  uint32_t handle;
  int cqe;
};

enum QpType : int { kReliableConnection = 2 };
enum QpState : int { kReset, kInit, kReadyToReceive, kReadyToSend, kSqDrain, kSqError, kError };

struct Qp {  // ibv_qp, its head
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  uint32_t handle;
  uint32_t qp_num;
  QpState state;
  QpType qp_type;
};

struct QpCap {  // ibv_qp_cap
  uint32_t max_send_wr;
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline_data;
};

struct QpInitAttr {  // ibv_qp_init_attr
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  QpCap cap;
  QpType qp_type;
  int sq_sig_all;
};

union Gid {  // ibv_gid
  uint8_t raw[16];
  uint64_t halves[2];
};

struct GlobalRoute {  // ibv_global_route
  Gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};

struct AhAttr {  // ibv_ah_attr
  GlobalRoute grh;
  uint16_t dlid;
  uint8_t sl;
  uint8_t src_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port_num;
};

struct QpAttr {  // ibv_qp_attr
  QpState qp_state;
  QpState cur_qp_state;
  int path_mtu;
  int path_mig_state;
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  unsigned int qp_access_flags;
  QpCap cap;
  AhAttr ah_attr;
  AhAttr alt_ah_attr;
  uint16_t pkey_index;
  uint16_t alt_pkey_index;
  uint8_t en_sqd_async_notify;
  uint8_t sq_draining;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t port_num;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  uint8_t alt_port_num;
  uint8_t alt_timeout;
  uint32_t rate_limit;
};

enum QpAttrMask : int {
  kMaskState = 1 << 0,
  kMaskAccessFlags = 1 << 3,
  kMaskPathMtu = 1 << 8,
  kMaskTimeout = 1 << 9,
  kMaskRetryCount = 1 << 10,
  kMaskRnrRetry = 1 << 11,
  kMaskMinRnrTimer = 1 << 15,
};

enum AccessFlags : int { kLocalWrite = 1, kRemoteWrite = 2 };

struct Sge {  // ibv_sge
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};

enum WrOpcode : int { kRdmaWrite = 0, kRdmaWriteWithImm = 1, kSend = 2, kSendWithImm = 3 };
enum SendFlags : unsigned { kSignaled = 2, kInline = 8 };

struct SendWr {  // ibv_send_wr
  uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge;
  WrOpcode opcode;
  unsigned int send_flags;
  uint32_t imm_data;  // network byte order
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    uint64_t other[4];
  } wr;
  uint64_t rest[7];
};

struct RecvWr {  // ibv_recv_wr
  uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};

enum WcStatus : int { kWcSuccess = 0, kWcWrFlushErr = 5, kWcRetryExcErr = 12, kWcRnrRetryExcErr = 13 };
enum WcOpcode : int { kWcRecv = 1 << 7, kWcRecvRdmaWithImm };

struct Wc {  // ibv_wc
  uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;  // means something only after success, as all that follows but qp_num
  uint32_t vendor_err;
  uint32_t byte_len;
  uint32_t imm_data;  // network byte order
  uint32_t qp_num;
  uint32_t src_qp;
  unsigned int wc_flags;
  uint16_t pkey_index;
  uint16_t slid;
  uint8_t sl;
  uint8_t dlid_path_bits;
};

enum PortState : int { kPortActive = 4 };

struct PortAttr {  // ibv_port_attr
  PortState state;
  int max_mtu;
  int active_mtu;
  int gid_tbl_len;
  uint32_t port_cap_flags;
  uint32_t max_msg_sz;
  uint32_t bad_pkey_cntr;
  uint32_t qkey_viol_cntr;
  uint16_t pkey_tbl_len;
  uint16_t lid;
  uint16_t sm_lid;
  uint8_t lmc;
  uint8_t max_vl_num;
  uint8_t sm_sl;
  uint8_t subnet_timeout;
  uint8_t init_type_reply;
  uint8_t active_width;
  uint8_t active_speed;
  uint8_t phys_state;
  uint8_t link_layer;
  uint8_t flags;
  uint16_t port_cap_flags2;
};

enum GidType : uint32_t { kGidIb, kGidRoceV1, kGidRoceV2 };

struct GidEntry {  // ibv_gid_entry
  Gid gid;
  uint32_t gid_index;
  uint32_t port_num;
  uint32_t gid_type;
  uint32_t ndev_ifindex;
};

// librdmacm -----------------------------------------------------------------------------------------------------------

enum CmEventType : int {
  kAddrResolved,
  kAddrError,
  kRouteResolved,
  kRouteError,
  kConnectRequest,
  kConnectResponse,
  kConnectError,
  kUnreachable,
  kRejected,
  kEstablished,
  kDisconnected,
  kDeviceRemoval,
  kMulticastJoin,
  kMulticastError,
  kAddrChange,
  kTimewaitExit,
};

enum PortSpace : int { kPortSpaceTcp = 0x0106 };

struct CmChannel {  // rdma_event_channel
  int fd;
};

union CmAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
  sockaddr_storage storage;
};

struct CmId {  // rdma_cm_id, up to the last field that we read
  Context* verbs;
  CmChannel* channel;
  void* context;
  Qp* qp;
  struct {
    CmAddress local;
    CmAddress remote;
    struct {
      Gid sgid;
      Gid dgid;
      uint16_t pkey;
    } ib;
    void* path_rec;
    int num_paths;
  } route;
  PortSpace ps;
  uint8_t port_num;
};

struct ConnParam {  // rdma_conn_param
  const void* private_data;
  uint8_t private_data_len;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  uint32_t qp_num;
};

struct CmEvent {  // rdma_cm_event
  CmId* id;
  CmId* listen_id;
  CmEventType event;
  int status;
  union {
    ConnParam conn;
    uint64_t other[7];
  } param;
};

}  // namespace byteps_like::verbs
