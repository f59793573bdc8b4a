/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine's own addresses. What goes to one of them never leaves the machine: it passes no firewall of the network,
 * and comes to services that only listen here. */
#include "common/base/sched.h"
#include "services/code/broker/policy.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>

/* Loop thread. Read again when older than CODE_OWN_ADDRESSES_MS. */
static struct {
    struct in6_addr list[CODE_OWN_ADDRESSES_MAX]; /* IPv4 ones mapped */
    size_t count;
    int64_t read_ms;
    bool known, too_many;
} own;

static bool in6_of(const struct sockaddr *address, struct in6_addr *out)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (address->sa_family == AF_INET) {
        memcpy(out->s6_addr, mapped, sizeof(mapped));
        memcpy(out->s6_addr + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        *out = ((const struct sockaddr_in6 *)address)->sin6_addr;
    } else {
        return false;
    }
    return true;
}

static void read_own(int64_t now)
{
    struct ifaddrs *all = NULL;

    own.known = getifaddrs(&all) == 0;
    own.read_ms = now;
    own.count = 0;
    own.too_many = false;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        struct in6_addr address;

        /* Classes refuse the others anyway; a machine may have thousands of those. */
        if (one->ifa_addr == NULL || !in6_of(one->ifa_addr, &address) ||
            code_address_class(one->ifa_addr) != CODE_ADDRESS_PUBLIC)
            continue;
        if (own.count == CODE_OWN_ADDRESSES_MAX)
            own.too_many = true;
        else
            own.list[own.count++] = address;
    }
    freeifaddrs(all);
}

bool code_address_is_own(const struct sockaddr *address)
{
    int64_t now = sk_mono_ms(&sk_sched_system);
    struct in6_addr wanted;

    if (!in6_of(address, &wanted))
        return true;
    if (!own.known || now - own.read_ms >= CODE_OWN_ADDRESSES_MS)
        read_own(now);
    for (size_t i = 0; i < own.count; i++) {
        if (memcmp(&own.list[i], &wanted, sizeof(wanted)) == 0)
            return true;
    }
    return !own.known || own.too_many; /* what cannot be told is not allowed */
}
