// What strangers bring back to a listener before they cost it memory; needs no device.
#include <doctest/doctest.h>

#include <set>

#include "csrc/transport/rdma/cookie.h"

namespace byteps_like::rdma {

TEST_CASE("rdma cookie: it is good for one connection of one source at one listener") {
  auto jar = CookieJar::Make(), other = CookieJar::Make();
  REQUIRE(jar.ok());
  REQUIRE(other.ok());
  const uint64_t mine[2] = {1, 2}, another[2] = {1, 3};
  const Cookie cookie = jar->Of("10.0.0.1", mine);
  CHECK(SameCookie(cookie, jar->Of("10.0.0.1", mine)));
  const std::set<Cookie> all = {cookie, jar->Of("10.0.0.2", mine), jar->Of("10.0.0.1", another),
                                other->Of("10.0.0.1", mine), Cookie{}};
  CHECK(all.size() == 5);
  for (const Cookie& one : all) CHECK(SameCookie(cookie, one) == (one == cookie));
}

}  // namespace byteps_like::rdma
