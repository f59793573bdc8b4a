/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a request goes: the URL through libcurl's parser (the same object is then sent, so nobody reads it a second
 * time), the names that are never asked, and the classes of addresses. */
#include "services/code/broker/policy.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define URL_FLAGS CURLU_URLENCODE /* a path may hold spaces and UTF-8, as browsers allow */

const char *code_net_refusal_message(enum code_net_refusal refusal)
{
    static const char *const texts[CODE_REFUSAL_COUNT] = {
        [CODE_REFUSED_NOT] = "",
        [CODE_REFUSED_URL] = "Invalid URL",
        [CODE_REFUSED_PROTOCOL] = "Protocol not allowed",
        [CODE_REFUSED_USER] = "Credentials in URL not allowed",
        [CODE_REFUSED_PORT] = "Port not allowed",
        [CODE_REFUSED_PRIVATE] = "Request to private network not allowed",
        [CODE_REFUSED_POLICY] = "Request not allowed by network policy",
        [CODE_REFUSED_METHOD] = "Method not allowed",
        [CODE_REFUSED_HEADER] = "Invalid request header",
        [CODE_REFUSED_HEADER_COUNT] = "Too many request headers",
        [CODE_REFUSED_HEADER_BYTES] = "Request headers too large",
        [CODE_REFUSED_MEMORY] = "Out of memory",
    };

    return refusal < CODE_REFUSAL_COUNT ? texts[refusal] : "";
}

const char *code_net_refusal_name(enum code_net_refusal refusal)
{
    static const char *const names[CODE_REFUSAL_COUNT] = {
        "none",   "url",    "protocol", "credentials",  "port",         "private",
        "policy", "method", "header",   "header-count", "header-bytes", "memory",
    };

    return refusal < CODE_REFUSAL_COUNT ? names[refusal] : "none";
}

struct v4_net {
    uint32_t net;
    int bits;
    enum code_address class;
};

static enum code_address v4_class(uint32_t ip)
{
#define V4(a, b, c, d) ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))
    static const struct v4_net nets[] = {
        {V4(10, 0, 0, 0), 8, CODE_ADDRESS_PRIVATE},
        {V4(172, 16, 0, 0), 12, CODE_ADDRESS_PRIVATE},
        {V4(192, 168, 0, 0), 16, CODE_ADDRESS_PRIVATE},
        {V4(0, 0, 0, 0), 8, CODE_ADDRESS_NEVER},
        {V4(100, 64, 0, 0), 10, CODE_ADDRESS_NEVER},
        {V4(127, 0, 0, 0), 8, CODE_ADDRESS_NEVER},
        {V4(169, 254, 0, 0), 16, CODE_ADDRESS_NEVER},
        {V4(192, 0, 0, 0), 24, CODE_ADDRESS_NEVER},
        {V4(192, 0, 2, 0), 24, CODE_ADDRESS_NEVER},
        {V4(192, 88, 99, 0), 24, CODE_ADDRESS_NEVER},
        {V4(198, 18, 0, 0), 15, CODE_ADDRESS_NEVER},
        {V4(198, 51, 100, 0), 24, CODE_ADDRESS_NEVER},
        {V4(203, 0, 113, 0), 24, CODE_ADDRESS_NEVER},
        {V4(224, 0, 0, 0), 4, CODE_ADDRESS_NEVER},
        {V4(240, 0, 0, 0), 4, CODE_ADDRESS_NEVER},
        {V4(168, 63, 129, 16), 32, CODE_ADDRESS_NEVER}, /* Azure's host */
    };
#undef V4

    for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]); i++)
        if ((ip ^ nets[i].net) >> (32 - nets[i].bits) == 0)
            return nets[i].class;
    return CODE_ADDRESS_PUBLIC;
}

static bool starts(const unsigned char *ip, int bits, const unsigned char *net)
{
    int bytes = bits / 8, rest = bits % 8;

    return memcmp(ip, net, (size_t)bytes) == 0 && (rest == 0 || (ip[bytes] ^ net[bytes]) >> (8 - rest) == 0);
}

static uint32_t v4_at(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static enum code_address v6_class(const unsigned char *ip)
{
    static const unsigned char mapped[16] = {[10] = 0xff, [11] = 0xff}, nat64[16] = {0, 0x64, 0xff, 0x9b};
    /* Cloud metadata in fc00::/7: Amazon, Google, Scaleway. */
    static const unsigned char metadata[][16] = {{0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54},
                                                 {0xfd, 0x20, 0x00, 0xce, [14] = 0x02, [15] = 0x54},
                                                 {0xfd, 0x00, 0x00, 0x42, [15] = 0x42}};
    static const unsigned char local[16] = {0xfc}, global[16] = {0x20};
    static const struct {
        unsigned char net[16];
        int bits;
    } never[] = {
        {{0x20, 0x01, 0x00, 0x00}, 23}, /* protocol assignments: Teredo, benchmarks, ORCHID */
        {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* documentation */
        {{0x20, 0x02}, 16},             /* 6to4 */
        {{0x3f, 0xff, 0x00}, 20},       /* documentation */
    };

    if (starts(ip, 96, mapped))
        return v4_class(v4_at(ip + 12));
    /* A translator's well-known prefix may only stand for public addresses (RFC 6052 §3.1). */
    if (starts(ip, 96, nat64))
        return v4_class(v4_at(ip + 12)) == CODE_ADDRESS_PUBLIC ? CODE_ADDRESS_PUBLIC : CODE_ADDRESS_NEVER;
    for (size_t i = 0; i < sizeof(metadata) / sizeof(metadata[0]); i++)
        if (memcmp(ip, metadata[i], 16) == 0)
            return CODE_ADDRESS_NEVER;
    if (starts(ip, 7, local))
        return CODE_ADDRESS_PRIVATE;
    if (!starts(ip, 3, global))
        return CODE_ADDRESS_NEVER;
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if (starts(ip, never[i].bits, never[i].net))
            return CODE_ADDRESS_NEVER;
    return CODE_ADDRESS_PUBLIC;
}

enum code_address code_address_class(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return v4_class(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
    if (address->sa_family == AF_INET6)
        return v6_class(((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr);
    return CODE_ADDRESS_NEVER;
}

void code_target_fini(struct code_target *target)
{
    curl_url_cleanup(target->url);
    memset(target, 0, sizeof(*target));
}

/* "mailto:x", "data:,x" and "localhost:80" are URLs to the language; libcurl's parser only knows "//". Refuses, allows
 * nothing: what it lets pass is read by libcurl alone. */
static enum code_net_refusal check_scheme(const char *text)
{
    size_t n = 0;

    if (!isalpha((unsigned char)text[0]))
        return CODE_REFUSED_URL;
    while (isalnum((unsigned char)text[n]) || (text[n] != '\0' && strchr("+-.", text[n]) != NULL))
        n++;
    if (text[n] != ':')
        return CODE_REFUSED_URL;
    return (n == 4 && strncasecmp(text, "http", 4) == 0) || (n == 5 && strncasecmp(text, "https", 5) == 0)
               ? CODE_REFUSED_NOT
               : CODE_REFUSED_PROTOCOL;
}

/* A name with other than ASCII letters, as the resolver will see it: mapped (full-width digits become digits) and in
 * Punycode. libidn2 takes the text in the locale's encoding, so this thread gets a UTF-8 one for the moment. */
static char *ascii_host(CURLU *url)
{
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before;
    char *host = NULL;

    if (utf8 == (locale_t)0)
        return NULL;
    before = uselocale(utf8);
    if (curl_url_get(url, CURLUPART_HOST, &host, CURLU_PUNYCODE) != CURLUE_OK) {
        curl_free(host); /* libcurl 7.88 leaves the name as it was to the caller then */
        host = NULL;
    }
    uselocale(before);
    freelocale(utf8);
    return host;
}

static bool is_ascii(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text >= 0x80)
            return false;
    return true;
}

/* A last label of digits (or 0x…) makes a host an address to some resolver: only a plain one may pass. */
static bool ends_in_number(const char *host)
{
    const char *label = strrchr(host, '.');

    label = label == NULL ? host : label + 1;
    if (label[0] == '0' && tolower((unsigned char)label[1]) == 'x')
        return label[2 + strspn(label + 2, "0123456789abcdefABCDEF")] == '\0';
    return label[0] != '\0' && label[strspn(label, "0123456789")] == '\0';
}

static bool is_name(const char *host)
{
    size_t label = 0;

    for (const char *p = host; *p != '\0'; p++) {
        if (*p == '.' ? label == 0 : (!isalnum((unsigned char)*p) && *p != '-' && *p != '_'))
            return false;
        label = *p == '.' ? 0 : label + 1;
        if (label > 63)
            return false;
    }
    return label > 0 && strlen(host) <= 253;
}

/* Reads the host into the target and puts its canonical form back into the URL. */
static enum code_net_refusal read_host(struct code_target *target)
{
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&target->address;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&target->address;
    char *host = NULL, *given = NULL;
    enum code_net_refusal refusal = CODE_REFUSED_URL;
    size_t len;

    if (curl_url_get(target->url, CURLUPART_HOST, &host, 0) != CURLUE_OK)
        return CODE_REFUSED_URL;
    if (!is_ascii(host)) {
        curl_free(host);
        host = ascii_host(target->url);
        if (host == NULL || !is_ascii(host))
            goto out;
    }
    len = strlen(host);
    if (host[0] == '[') {
        if (len < 3 || len >= CODE_HOST_SIZE || host[len - 1] != ']')
            goto out;
        host[len - 1] = '\0';
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) != 1)
            goto out;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)target->port);
        target->literal = true;
        inet_ntop(AF_INET6, &v6->sin6_addr, target->host, sizeof(target->host));
        refusal = CODE_REFUSED_NOT; /* libcurl keeps the address as it is */
        goto out;
    }
    if (len > 1 && host[len - 1] == '.')
        host[--len] = '\0';
    if (len == 0 || len >= sizeof(target->host))
        goto out;
    for (size_t i = 0; i <= len; i++)
        target->host[i] = (char)tolower((unsigned char)host[i]);
    if (inet_pton(AF_INET, target->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)target->port);
        target->literal = true;
    } else if (ends_in_number(target->host) || !is_name(target->host)) {
        goto out;
    }
    /* libcurl must come to the same host from here, and not to another one. */
    if (curl_url_set(target->url, CURLUPART_HOST, target->host, 0) != CURLUE_OK ||
        curl_url_get(target->url, CURLUPART_HOST, &given, 0) != CURLUE_OK || strcmp(given, target->host) != 0)
        goto out;
    refusal = CODE_REFUSED_NOT;
out:
    curl_free(host);
    curl_free(given);
    return refusal;
}

static bool has_part(CURLU *url, CURLUPart part)
{
    char *text = NULL;
    bool has = curl_url_get(url, part, &text, 0) == CURLUE_OK;

    curl_free(text);
    return has;
}

static enum code_net_refusal read_parts(struct code_target *target)
{
    char *scheme = NULL, *port = NULL;
    enum code_net_refusal refusal = CODE_REFUSED_URL;

    if (curl_url_get(target->url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK)
        goto out;
    target->tls = strcasecmp(scheme, "https") == 0;
    refusal = CODE_REFUSED_PROTOCOL;
    if (!target->tls && strcasecmp(scheme, "http") != 0)
        goto out;
    refusal = CODE_REFUSED_USER;
    if (has_part(target->url, CURLUPART_USER) || has_part(target->url, CURLUPART_PASSWORD) ||
        has_part(target->url, CURLUPART_OPTIONS))
        goto out;
    refusal = CODE_REFUSED_URL;
    if (has_part(target->url, CURLUPART_ZONEID) ||
        curl_url_get(target->url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK)
        goto out;
    target->port = atoi(port); /* libcurl lets only 1 to 65535 pass, and 0 */
    refusal = read_host(target);
out:
    curl_free(scheme);
    curl_free(port);
    return refusal;
}

enum code_net_refusal code_target_parse(struct code_target *target, const char *text, size_t length, const CURLU *base)
{
    enum code_net_refusal refusal = CODE_REFUSED_URL;
    CURLUcode code;
    char *copy;

    memset(target, 0, sizeof(*target));
    while (length > 0 && (unsigned char)text[0] <= ' ') {
        text++;
        length--;
    }
    while (length > 0 && (unsigned char)text[length - 1] <= ' ')
        length--;
    if (length == 0 || length > CODE_URL_MAX || memchr(text, '\0', length) != NULL)
        return CODE_REFUSED_URL;
    copy = strndup(text, length);
    target->url = base == NULL ? curl_url() : curl_url_dup((CURLU *)base);
    if (copy == NULL || target->url == NULL) {
        refusal = CODE_REFUSED_MEMORY;
        goto out;
    }
    if (base == NULL) {
        refusal = check_scheme(copy);
        if (refusal != CODE_REFUSED_NOT)
            goto out;
    }
    code = curl_url_set(target->url, CURLUPART_URL, copy, URL_FLAGS);
    refusal = code == CURLUE_UNSUPPORTED_SCHEME ? CODE_REFUSED_PROTOCOL
              : code == CURLUE_OUT_OF_MEMORY    ? CODE_REFUSED_MEMORY
              : code != CURLUE_OK               ? CODE_REFUSED_URL
                                                : read_parts(target);
out:
    free(copy);
    if (refusal != CODE_REFUSED_NOT)
        code_target_fini(target);
    return refusal;
}

/* Ports of services that take what an HTTP client sends for commands of their own (fetch's list of bad ports). */
static bool bad_port(int port)
{
    static const short bad[] = {
        0,    1,    7,    9,    11,   13,   15,   17,   19,   20,   21,   22,   23,   25,   37,   42,    43,
        53,   69,   77,   79,   87,   95,   101,  102,  103,  104,  109,  110,  111,  113,  115,  117,   119,
        123,  135,  137,  139,  143,  161,  179,  389,  427,  465,  512,  513,  514,  515,  526,  530,   531,
        532,  540,  548,  554,  556,  563,  587,  601,  636,  989,  990,  993,  995,  1719, 1720, 1723,  2049,
        3659, 4045, 4190, 5060, 5061, 6000, 6379, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080, 11211};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (bad[i] == port)
            return true;
    return false;
}

static bool ends_with(const char *host, const char *tail)
{
    size_t len = strlen(host), tail_len = strlen(tail);

    return len >= tail_len && strcmp(host + len - tail_len, tail) == 0;
}

/* Names that mean this machine, or what configures it, whatever they resolve to. */
static bool never_asked(const struct code_policy *policy, const char *host)
{
    static const char *const names[] = {"localhost",     "localhost.localdomain",
                                        "localhost6",    "localhost6.localdomain6",
                                        "ip6-localhost", "ip6-loopback",
                                        "metadata",      "metadata.google.internal",
                                        "metadata.goog", "metadata.tencentyun.com",
                                        "instance-data", "instance-data.ec2.internal",
                                        "kubernetes",    "kubernetes.default"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(host, names[i]) == 0)
            return true;
    return ends_with(host, ".localhost") || strncmp(host, "kubernetes.default.", 19) == 0 ||
           code_policy_is_own_host(policy, host);
}

enum code_net_refusal code_target_judge(struct code_target *target, const struct code_policy *policy,
                                        const char *queue_id)
{
    struct code_ruling ruling = code_policy_rule(policy, queue_id, target->host, target->port);

    target->rules = ruling.rules;
    target->internal = !code_policy_checks_internal(policy) || (ruling.allowed && ruling.by_name);
    /* What is refused for everybody comes first: a rule's answer must not tell who is inside. */
    if (target->port == 0 || (bad_port(target->port) && !(ruling.allowed && ruling.by_port)))
        return CODE_REFUSED_PORT;
    if (!target->literal) {
        if (never_asked(policy, target->host)) {
            target->why = "name";
            return CODE_REFUSED_PRIVATE;
        }
        if (!target->internal && (strchr(target->host, '.') == NULL || ends_with(target->host, ".internal"))) {
            target->why = "internal name";
            return CODE_REFUSED_PRIVATE;
        }
    } else {
        enum code_net_refusal refusal =
            code_target_address(target, policy, queue_id, (const struct sockaddr *)&target->address);

        if (refusal != CODE_REFUSED_NOT)
            return refusal;
    }
    return ruling.allowed ? CODE_REFUSED_NOT : CODE_REFUSED_POLICY;
}

enum code_net_refusal code_target_address(const struct code_target *target, const struct code_policy *policy,
                                          const char *queue_id, const struct sockaddr *address)
{
    switch (code_address_class(address)) {
    case CODE_ADDRESS_PUBLIC:
        if (code_address_is_own(address))
            return CODE_REFUSED_PRIVATE;
        break;
    case CODE_ADDRESS_PRIVATE:
        if (!target->internal)
            return CODE_REFUSED_PRIVATE;
        break;
    case CODE_ADDRESS_NEVER:
    default:
        return CODE_REFUSED_PRIVATE;
    }
    return code_policy_denies_address(policy, queue_id, target->rules, target->port, address) ? CODE_REFUSED_POLICY
                                                                                              : CODE_REFUSED_NOT;
}
