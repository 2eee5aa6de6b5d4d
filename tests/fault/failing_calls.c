// Preloaded: the n-th of the calls of one kind fails, as it does where a process has no more of something.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum Kind { NOTHING, SOCKET, SOCKETPAIR, ACCEPT, EPOLL_CREATE, EPOLL_CTL, EVENTFD, MEMFD, MAP, POPULATE, THREAD };

static atomic_int armed, before;

void failing_calls_arm(int kind, int number) {
  before = number;
  armed = kind;
}
int failing_calls_over(void) { return before <= 0; }

static int fails(enum Kind kind, int error) {
  if (armed != (int)kind || atomic_fetch_sub(&before, 1) != 1) return 0;
  errno = error;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int socket(int domain, int type, int protocol) {
  return fails(SOCKET, EMFILE) ? -1 : REAL(socket)(domain, type, protocol);
}
int socketpair(int domain, int type, int protocol, int ends[2]) {
  return fails(SOCKETPAIR, EMFILE) ? -1 : REAL(socketpair)(domain, type, protocol, ends);
}
int accept4(int fd, struct sockaddr* address, socklen_t* size, int flags) {
  return fails(ACCEPT, EMFILE) ? -1 : REAL(accept4)(fd, address, size, flags);
}
int epoll_create1(int flags) { return fails(EPOLL_CREATE, EMFILE) ? -1 : REAL(epoll_create1)(flags); }
int epoll_ctl(int epoll, int what, int fd, struct epoll_event* event) {
  if (what == EPOLL_CTL_ADD && fails(EPOLL_CTL, ENOSPC)) return -1;
  return REAL(epoll_ctl)(epoll, what, fd, event);
}
int eventfd(unsigned value, int flags) { return fails(EVENTFD, EMFILE) ? -1 : REAL(eventfd)(value, flags); }
int memfd_create(const char* name, unsigned flags) {
  return fails(MEMFD, EMFILE) ? -1 : REAL(memfd_create)(name, flags);
}
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_SHARED) != 0 && fails(MAP, ENOMEM)) return MAP_FAILED;
  return REAL(mmap)(address, size, protection, flags, fd, offset);
}
int madvise(void* address, size_t size, int advice) {
  if (advice == 23 && fails(POPULATE, EFAULT)) return -1;  // MADV_POPULATE_WRITE
  return REAL(madvise)(address, size, advice);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  return fails(THREAD, EAGAIN) ? EAGAIN : REAL(pthread_create)(thread, attributes, body, argument);
}
