/* SPDX-License-Identifier: Apache-2.0
 *
 * What a task may ask for: URLs in every spelling that ever led inside, addresses, the policy file and its faults, and
 * headers. Names are only judged as names here: nothing is resolved. */
#include "services/code/broker/policy.h"
#include "tests/unit/check_main.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct code_policy *make(const char *text, bool check_internal)
{
    const struct code_policy_options options = {.text = text,
                                                .length = text == NULL ? 0 : strlen(text),
                                                .check_internal = check_internal,
                                                .own_host = "Sandbox-7.example.net"};
    struct sk_error err;
    struct code_policy *policy = code_policy_new(&options, &err);

    ck_assert_msg(policy != NULL, "%s", err.message);
    return policy;
}

static enum code_net_refusal ask_as(const struct code_policy *policy, const char *queue_id, const char *url, char *host)
{
    struct code_target target;
    enum code_net_refusal refusal = code_target_parse(&target, url, strlen(url), NULL);

    if (refusal == CODE_REFUSED_NOT)
        refusal = code_target_judge(&target, policy, queue_id);
    if (host != NULL)
        snprintf(host, CODE_HOST_SIZE, "%s", target.host);
    code_target_fini(&target);
    return refusal;
}

struct url_row {
    const char *url;
    enum code_net_refusal checked, unchecked; /* with CHECK_INTERNAL_IP, without */
};

#define U CODE_REFUSED_URL
#define P CODE_REFUSED_PRIVATE
#define S CODE_REFUSED_PROTOCOL
#define C CODE_REFUSED_USER
#define T CODE_REFUSED_PORT
#define N CODE_REFUSED_NOT

static const struct url_row url_rows[] = {
    /* loopback and "any", in all spellings */
    {"http://localhost/", P, P},
    {"http://LOCALHOST/", P, P},
    {"http://localhost:3000/health", P, P},
    {"https://localhost./", P, P},
    {"http://app.localhost/", P, P},
    {"http://a.b.LocalHost./", P, P},
    {"http://localhost.localdomain/", P, P},
    {"http://ip6-localhost/", P, P},
    {"http://127.0.0.1/", P, P},
    {"http://127.0.0.1./", P, P},
    {"http://127.1/", P, P},
    {"http://127.0.1/", P, P},
    {"http://2130706433/", P, P},
    {"http://0x7f000001/", P, P},
    {"http://0x7F.0x0.0x0.0x1/", P, P},
    {"http://017700000001/", P, P},
    {"http://0177.0.0.01/", P, P},
    {"http://0177.0.0.1/", P, P},
    {"http://127.0.0.1:80/", P, P},
    {"http://127.255.255.254/", P, P},
    {"http://0.0.0.0/", P, P},
    {"http://0/", P, P},
    {"http://00000/", P, P},
    {"http://0x0/", P, P},
    {"http://%31%32%37.0.0.1/", P, P},
    {"http://%6cocalhost/", P, P},
    {"http://\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1/", P, P}, /* full-width 127 */
    {"http://127\xe3\x80\x82"
     "0\xe3\x80\x82"
     "0\xe3\x80\x82"
     "1/",
     P, P},                                                                             /* ideographic dots */
    {"http://\xe2\x93\x9b\xe2\x93\x9e\xe2\x93\x92\xe2\x93\x90\xe2\x93\x9bhost/", P, P}, /* circled letters */
    {"http://loc\xc2\xad"
     "alhost/",
     P, P}, /* soft hyphen */
    {"http://[::1]/", P, P},
    {"http://[::]/", P, P},
    {"http://[0:0:0:0:0:0:0:1]:80/", P, P},
    {"http://[::ffff:127.0.0.1]/", P, P},
    {"http://[::ffff:7f00:1]/", P, P},
    {"http://[::127.0.0.1]/", P, P},
    {"http://[::ffff:0:127.0.0.1]/", P, P},
    {"http://[64:ff9b::7f00:1]/", P, P},
    {"http://[64:ff9b::10.0.0.1]/", P, P},
    {"http://[64:ff9b:1::7f00:1]/", P, P},
    {"http://[2002:7f00:1::]/", P, P},
    {"http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/", P, P},
    {"http://[2001:db8::1]/", P, P},
    {"http://[3fff::1]/", P, P},
    {"http://[ff02::1]/", P, P},
    {"http://[fe80::1]/", P, P},
    {"http://[fe80::1%25eth0]/", U, U},
    {"http://[fec0::1]/", P, P},
    {"http://[5f00::1]/", P, P},
    /* metadata and link-local */
    {"http://169.254.169.254/latest/meta-data/", P, P},
    {"http://2852039166/", P, P},
    {"http://0xa9fea9fe/", P, P},
    {"http://0251.0376.0251.0376/", P, P},
    {"http://169.254.43518/", P, P},
    {"http://[::ffff:169.254.169.254]/", P, P},
    {"http://100.100.100.200/", P, P},
    {"http://168.63.129.16/", P, P},
    {"http://[fd00:ec2::254]/", P, P},
    {"http://[fd20:ce::254]/", P, P},
    {"http://metadata.google.internal/", P, P},
    {"http://METADATA.google.internal./computeMetadata/", P, P},
    {"http://metadata/", P, P},
    {"http://metadata.tencentyun.com/", P, P},
    {"http://kubernetes/", P, P},
    {"http://kubernetes.default/", P, P},
    {"http://kubernetes.default.svc/", P, P},
    {"http://kubernetes.default.svc.cluster.local/", P, P},
    {"http://sandbox-7.example.net/", P, P},
    {"http://SANDBOX-7.EXAMPLE.NET./", P, P},
    /* the other ranges that are no peers */
    {"http://100.64.0.1/", P, P},
    {"http://192.0.0.192/", P, P},
    {"http://192.0.2.1/", P, P},
    {"http://192.88.99.1/", P, P},
    {"http://198.18.0.1/", P, P},
    {"http://198.19.255.255/", P, P},
    {"http://198.51.100.1/", P, P},
    {"http://203.0.113.9/", P, P},
    {"http://224.0.0.1/", P, P},
    {"http://255.255.255.255/", P, P},
    /* private: the switch */
    {"http://10.0.0.1/", P, N},
    {"http://012.0.0.1/", P, N},
    {"http://172.16.0.1/", P, N},
    {"http://172.31.255.255/", P, N},
    {"http://192.168.1.1:8080/", P, N},
    {"http://[fc00::1]/", P, N},
    {"http://[fdff::1]/", P, N},
    {"http://[::ffff:10.0.0.1]/", P, N},
    {"http://searxng:8080/", P, N},
    {"http://host.docker.internal/", P, N},
    {"http://com/", P, N},
    /* other protocols, users, and what two parsers would read in two ways */
    {"ftp://example.com/", S, S},
    {"file:///etc/passwd", S, S},
    {"FILE:///etc/passwd", S, S},
    {"gopher://127.0.0.1:25/x", S, S},
    {"data:,x", S, S},
    {"javascript:1", S, S},
    {"localhost:80", S, S},
    {"dict://127.0.0.1:11211/stats", S, S},
    {"ws://example.com/", S, S},
    {"http://a@127.0.0.1/", C, C},
    {"http://example.com@127.0.0.1/", C, C},
    {"http://user:pw@example.com/", C, C},
    {"http://:pw@example.com/", C, C},
    {"http://127.0.0.1\\@example.com/", C, C},
    {"http://example.com\\@127.0.0.1/", C, C},
    {"http://example.com#@127.0.0.1/", N, N},
    {"http://example.com?@127.0.0.1/", N, N},
    {"http://127.0.0.1\\.example.com/", U, U},
    {"http://exa mple.com/", U, U},
    {"http://example.com\r\nHost: x/", U, U},
    {"http://example.com/a\r\nX: y", U, U},
    {"http://example.com/a\tb", U, U},
    {"http://256.1.1.1/", U, U},
    {"http://1.2.3.4.5/", U, U},
    {"http://1.2.3.0x/", U, U},
    {"http://example.0x7f/", U, U},
    {"http://4294967296/", U, U},
    {"http://08.8.8.8/", U, U},
    {"http://a..b/", U, U},
    {"http://.example.com/", U, U},
    {"http://example.com../", U, U},
    {"http://[::1/", U, U},
    {"http://[127.0.0.1]/", U, U},
    {"http://[]/", U, U},
    {"http://", U, U},
    {"http:///", U, U},
    {"", U, U},
    {"   ", U, U},
    {"//example.com/", U, U},
    {"/relative", U, U},
    {"example.com/x", U, U},
    {"http://example.com:99999/", U, U},
    {"http://example.com:-1/", U, U},
    {"http://example.com:80:80/", U, U},
    {"http://example.com:0x50/", U, U},
    {"http://exam%00ple.com/", U, U},
    {"http://exam%2fple.com/", U, U},
    {"http://\xff\xfe/", U, U},
    /* ports of others */
    {"http://example.com:0/", T, T},
    {"http://example.com:22/", T, T},
    {"http://example.com:25/", T, T},
    {"http://example.com:6379/", T, T},
    {"http://example.com:11211/", T, T},
    {"http://127.0.0.1:22/", T, T},
    /* what is fine */
    {"http://1.1.1.1/", N, N},
    {"https://8.8.8.8:8443/dns-query?x=1#y", N, N},
    {"http://134744072/", N, N},
    {"http://[2001:4860:4860::8888]/", N, N},
    {"http://[::ffff:8.8.8.8]/", N, N},
    {"http://[64:ff9b::8.8.8.8]/", N, N},
    {"HTTPS://API.Example.COM./v1", N, N},
    {" https://example.com/x \n", N, N},
    {"https://example.com/\xe6\x90\x9c\xe7\xb4\xa2?q=\xe4\xbd\xa0 a", N, N},
    {"https://xn--fsqu00a.xn--0zwm56d/", N, N},
    {"https://\xe4\xbe\x8b\xe5\xad\x90.\xe6\xb5\x8b\xe8\xaf\x95/", N, N},
    {"http://127.0.0.1.nip.io/", N, N}, /* its address is what counts */
    {"http://a_b.example.com/", N, N},
    {"http://localhost.example.com/", N, N},
    {"http://kubernetes.example.com/", N, N},
};

START_TEST(test_urls)
{
    struct code_policy *checked = make(NULL, true), *unchecked = make(NULL, false);

    for (size_t i = 0; i < sizeof(url_rows) / sizeof(url_rows[0]); i++) {
        const struct url_row *row = &url_rows[i];
        char host[CODE_HOST_SIZE];
        enum code_net_refusal a = ask_as(checked, NULL, row->url, host), b = ask_as(unchecked, NULL, row->url, NULL);

        ck_assert_msg(a == row->checked, "%s -> %s: %s", row->url, host, code_net_refusal_name(a));
        ck_assert_msg(b == row->unchecked, "%s unchecked -> %s: %s", row->url, host, code_net_refusal_name(b));
    }
    code_policy_free(checked);
    code_policy_free(unchecked);
}
END_TEST

START_TEST(test_messages)
{
    ck_assert_str_eq(code_net_refusal_message(CODE_REFUSED_PROTOCOL), "Protocol not allowed");
    ck_assert_str_eq(code_net_refusal_message(CODE_REFUSED_PRIVATE), "Request to private network not allowed");
    for (int i = 1; i < CODE_REFUSAL_COUNT; i++) {
        ck_assert(code_net_refusal_message((enum code_net_refusal)i)[0] != '\0');
        ck_assert_str_ne(code_net_refusal_name((enum code_net_refusal)i), "none");
    }
}
END_TEST

/* What is sent is what was judged: the object itself holds the canonical host. */
START_TEST(test_canonical)
{
    static const struct {
        const char *url, *canonical;
        int port;
    } rows[] = {
        {"HTTP://Example.COM.:8080/A?b#c", "http://example.com:8080/A?b#c", 8080},
        {"https://134744072/x", "https://8.8.8.8/x", 443},
        {"http://\xef\xbc\x91.1.1.1/", "http://1.1.1.1/", 80},
        {"http://b\xc3\xbc"
         "cher.example/",
         "http://xn--bcher-kva.example/", 80},
        {"http://[2001:4860:4860:0:0:0:0:8888]:81/", "http://[2001:4860:4860::8888]:81/", 81},
        {"http://example.com/a b/\xc3\xa9", "http://example.com/a%20b/%c3%a9", 80},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_target target;
        char *text = NULL;

        ck_assert_int_eq(code_target_parse(&target, rows[i].url, strlen(rows[i].url), NULL), CODE_REFUSED_NOT);
        ck_assert_int_eq(curl_url_get(target.url, CURLUPART_URL, &text, 0), CURLUE_OK);
        ck_assert_str_eq(text, rows[i].canonical);
        ck_assert_int_eq(target.port, rows[i].port);
        curl_free(text);
        code_target_fini(&target);
    }
}
END_TEST

START_TEST(test_redirect_targets)
{
    static const struct {
        const char *location;
        enum code_net_refusal refusal;
        const char *host;
    } rows[] = {
        {"/next", N, "example.com"},
        {"?q", N, "example.com"},
        {"//other.example/x", N, "other.example"},
        {"http://127.0.0.1/", P, NULL},
        {"//169.254.169.254/", P, NULL},
        {"https://2130706433/", P, NULL},
        {"file:///etc/passwd", S, NULL},
        {"ftp://example.com/", S, NULL},
        {"http://u@example.com/", C, NULL},
        {"//localhost/", P, NULL},
        {"http://example.com:25/", T, NULL},
    };
    struct code_policy *policy = make(NULL, true);
    struct code_target base;

    ck_assert_int_eq(code_target_parse(&base, "https://example.com/a/b", 23, NULL), CODE_REFUSED_NOT);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct code_target target;
        enum code_net_refusal refusal =
            code_target_parse(&target, rows[i].location, strlen(rows[i].location), base.url);

        if (refusal == CODE_REFUSED_NOT)
            refusal = code_target_judge(&target, policy, NULL);
        ck_assert_msg(refusal == rows[i].refusal, "%s: %s", rows[i].location, code_net_refusal_name(refusal));
        if (rows[i].host != NULL)
            ck_assert_str_eq(target.host, rows[i].host);
        code_target_fini(&target);
    }
    code_target_fini(&base);
    code_policy_free(policy);
}
END_TEST

START_TEST(test_bounds)
{
    struct code_target target;
    char *url = malloc(CODE_URL_MAX + 2);

    memset(url, 'a', CODE_URL_MAX + 1);
    memcpy(url, "http://example.com/", 19);
    url[CODE_URL_MAX + 1] = '\0';
    ck_assert_int_eq(code_target_parse(&target, url, CODE_URL_MAX + 1, NULL), CODE_REFUSED_URL);
    ck_assert_int_eq(code_target_parse(&target, url, CODE_URL_MAX, NULL), CODE_REFUSED_NOT);
    code_target_fini(&target);
    ck_assert_int_eq(code_target_parse(&target, "http://example.com/\0x", 21, NULL), CODE_REFUSED_URL);
    memset(url + 7, 'a', 400);
    ck_assert_int_eq(code_target_parse(&target, url, 300, NULL), CODE_REFUSED_URL);
    free(url);
}
END_TEST

START_TEST(test_resolved_addresses)
{
    static const struct {
        const char *address;
        enum code_net_refusal refusal;
    } rows[] = {{"127.0.0.1", P}, {"10.1.2.3", P}, {"8.8.8.8", N}, {"::ffff:10.0.0.1", P}, {"2606:4700::1111", N},
                {"fe80::1", P},   {"::", P},       {"0.0.0.0", P}, {"100.127.255.255", P}, {"100.128.0.0", N}};
    struct code_policy *policy = make(NULL, true);
    struct code_target target;
    struct sockaddr_un_like {
        sa_family_t family;
    } other = {AF_UNIX};

    ck_assert_int_eq(code_target_parse(&target, "http://127.0.0.1.nip.io/", 24, NULL), CODE_REFUSED_NOT);
    ck_assert_int_eq(code_target_judge(&target, policy, NULL), CODE_REFUSED_NOT);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sockaddr_storage a = {0};

        if (inet_pton(AF_INET, rows[i].address, &((struct sockaddr_in *)&a)->sin_addr) == 1) {
            a.ss_family = AF_INET;
        } else {
            ck_assert_int_eq(inet_pton(AF_INET6, rows[i].address, &((struct sockaddr_in6 *)&a)->sin6_addr), 1);
            a.ss_family = AF_INET6;
        }
        ck_assert_msg(code_target_address(&target, policy, NULL, (struct sockaddr *)&a) == rows[i].refusal, "%s",
                      rows[i].address);
    }
    ck_assert_int_eq(code_address_class((struct sockaddr *)&other), CODE_ADDRESS_NEVER);
    code_target_fini(&target);
    code_policy_free(policy);
}
END_TEST

/* A public address of this machine is this machine: its traffic passes no firewall. In a network of our own. */
START_TEST(test_own_addresses)
{
    static const char *const urls[] = {"http://93.184.216.34/", "http://[::ffff:93.184.216.34]/", "http://1572395042/"};
    struct code_policy *policy = make("{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"93.184.216.34\"]}]}", true);
    struct ifreq request = {.ifr_name = "lo"};
    struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;
    int fd;

    if (unshare(CLONE_NEWNET) != 0) {
        fprintf(stderr, "no network namespace to be had: not tested\n");
        return;
    }
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    address->sin_family = AF_INET;
    ck_assert_int_eq(inet_pton(AF_INET, "93.184.216.34", &address->sin_addr), 1);
    ck_assert_int_eq(ioctl(fd, SIOCSIFADDR, &request), 0);
    close(fd);
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
        ck_assert_int_eq(ask_as(policy, "x", urls[i], NULL), CODE_REFUSED_PRIVATE);
    ck_assert_int_eq(ask_as(policy, "x", "http://93.184.216.35/", NULL), CODE_REFUSED_NOT);
    code_policy_free(policy);
}
END_TEST

START_TEST(test_file_rules)
{
    static const char text[] =
        "{\"default\":\"none\",\"rules\":["
        "{\"queueId\":\"team-a\",\"allow\":[\"*.example.com\",\"intranet\",\"10.1.2.3:8080\",\"127.0.0.1\","
        "\"localhost\","
        "\"[fd00:1::5]\",\"mail.example.org:25\",\"169.254.169.254\",\"metadata.google.internal\"],"
        "\"deny\":[\"evil.example.com\",\"*:8443\",\"9.9.9.9\"]},"
        "{\"queueId\":\"team-b\",\"deny\":[\"*\"]},"
        "{\"queueId\":\"*\",\"allow\":[\"API.Example.net.:443\",\"10.*\",\"evil.example.com\"]},"
        "{\"queueId\":\"team-b\",\"allow\":[\"*\"]}]}";
    static const struct {
        const char *queue_id, *url;
        enum code_net_refusal refusal;
    } rows[] = {
        {"team-a", "https://a.example.com/", N},
        {"team-a", "https://A.B.EXAMPLE.com./", N},
        {"team-a", "https://example.com/", CODE_REFUSED_POLICY},
        {"team-a", "https://notexample.com/", CODE_REFUSED_POLICY},
        {"team-a", "https://evil.example.com/", CODE_REFUSED_POLICY}, /* before a later rule's allow, too */
        {"team-a", "https://a.example.com:8443/", CODE_REFUSED_POLICY},
        {"team-a", "http://intranet/", N},
        {"team-a", "http://10.1.2.3:8080/", N},
        {"team-a", "http://167838211:8080/", N},
        {"team-a", "http://10.1.2.3/", P}, /* the glob of a later rule opens nothing inside */
        {"team-a", "http://[fd00:1:0::5]/", N},
        {"team-a", "http://mail.example.org:25/", N},
        {"team-a", "http://a.example.com:25/", T},
        {"team-a", "https://api.example.net/", N},
        {"team-a", "http://api.example.net/", CODE_REFUSED_POLICY},
        {"team-a", "http://127.0.0.1/", P},
        {"team-a", "http://localhost/", P},
        {"team-a", "http://169.254.169.254/", P},
        {"team-a", "http://metadata.google.internal/", P},
        {"team-b", "https://api.example.net/", CODE_REFUSED_POLICY},
        {"team-c", "https://api.example.net/", N},
        {"team-c", "https://evil.example.com/", N},
        {"team-c", "https://a.example.com/", CODE_REFUSED_POLICY},
        {"team-c", "http://intranet/", P},
        {NULL, "https://api.example.net/", N},
        {NULL, "https://a.example.com/", CODE_REFUSED_POLICY},
        {"*", "https://a.example.com/", CODE_REFUSED_POLICY},
    };
    struct code_policy *policy = make(text, true);
    struct code_target target;
    struct sockaddr_in a = {.sin_family = AF_INET};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum code_net_refusal refusal = ask_as(policy, rows[i].queue_id, rows[i].url, NULL);

        ck_assert_msg(refusal == rows[i].refusal, "%s %s: %s", rows[i].queue_id, rows[i].url,
                      code_net_refusal_name(refusal));
    }
    /* A denied address is denied under any name; a name that a rule names may be inside, but never on this machine. */
    ck_assert_int_eq(code_target_parse(&target, "http://intranet/", 16, NULL), CODE_REFUSED_NOT);
    ck_assert_int_eq(code_target_judge(&target, policy, "team-a"), CODE_REFUSED_NOT);
    inet_pton(AF_INET, "9.9.9.9", &a.sin_addr);
    ck_assert_int_eq(code_target_address(&target, policy, "team-a", (struct sockaddr *)&a), CODE_REFUSED_POLICY);
    inet_pton(AF_INET, "10.7.7.7", &a.sin_addr);
    ck_assert_int_eq(code_target_address(&target, policy, "team-a", (struct sockaddr *)&a), CODE_REFUSED_NOT);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    ck_assert_int_eq(code_target_address(&target, policy, "team-a", (struct sockaddr *)&a), CODE_REFUSED_PRIVATE);
    code_target_fini(&target);
    code_policy_free(policy);
    policy = make("{\"rules\":[{\"queueId\":\"*\",\"deny\":[\"*.example.com\"]}]}", true);
    ck_assert_int_eq(ask_as(policy, "x", "http://a.example.com/", NULL), CODE_REFUSED_POLICY);
    ck_assert_int_eq(ask_as(policy, "x", "http://example.org/", NULL), N);
    code_policy_free(policy);
}
END_TEST

START_TEST(test_file_faults)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", ""},
        {"nonsense", ""},
        {"[]", ""},
        {"{\"default\":\"public\",\"default\":\"none\"}", ""},
        {"{\"default\":\"all\"}", "default: must be \"public\" or \"none\""},
        {"{\"default\":1}", "default: must be \"public\" or \"none\""},
        {"{\"rule\":[]}", "the file: \"rule\" is not known here"},
        {"{\"rules\":{}}", "rules: must be a list"},
        {"{\"rules\":[1]}", "rules[0]: must be an object"},
        {"{\"rules\":[{\"allow\":[]}]}", "rules[0].queueId: must be a queueId or \"*\""},
        {"{\"rules\":[{\"queueId\":\"\",\"allow\":[]}]}", "rules[0].queueId: must be a queueId or \"*\""},
        {"{\"rules\":[{\"queueId\":\"*\"}]}", "rules[0]: allows and denies nothing"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":\"*\"}]}", "rules[0].allow: must be a list of hosts"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allows\":[]}]}", "rules[0]: \"allows\" is not known here"},
        {"{\"rules\":[{\"queueId\":\"*\",\"deny\":[]},{\"queueId\":\"a\",\"deny\":[\"x\",5]}]}",
         "rules[1].deny[1]: must be a text"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"\"]}]}",
         "rules[0].allow[0]: must be a host of 1 to 271 characters"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"http://x\"]}]}",
         "rules[0].allow[0]: must be host or host:port, without scheme, path or mask"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"10.0.0.0/8\"]}]}",
         "rules[0].allow[0]: must be host or host:port, without scheme, path or mask"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"x:0\"]}]}",
         "rules[0].allow[0]: the port must be 1 to 65535 or *, and an IPv6 address must stand in brackets"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"x:65536\"]}]}",
         "rules[0].allow[0]: the port must be 1 to 65535 or *, and an IPv6 address must stand in brackets"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"fe80::1\"]}]}",
         "rules[0].allow[0]: the port must be 1 to 65535 or *, and an IPv6 address must stand in brackets"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\":80\"]}]}", "rules[0].allow[0]: the host is empty"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"[x]\"]}]}",
         "rules[0].allow[0]: no IPv6 address stands in the brackets"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"b\xc3\xbc"
         "cher\"]}]}",
         "rules[0].allow[0]: a host has letters, digits, '-', '.', '_' and '*'; write other names as xn--…"},
        {"{\"rules\":[{\"queueId\":\"*\",\"allow\":[\"a b\"]}]}",
         "rules[0].allow[0]: a host has letters, digits, '-', '.', '_' and '*'; write other names as xn--…"},
    };
    struct sk_error err;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct code_policy_options options = {.text = rows[i].text, .length = strlen(rows[i].text)};

        memset(&err, 0, sizeof(err));
        ck_assert_msg(code_policy_new(&options, &err) == NULL, "%s", rows[i].text);
        ck_assert_int_eq(err.code, SK_ERR_INVALID_REQUEST);
        ck_assert(err.message[0] != '\0');
        if (rows[i].message[0] != '\0')
            ck_assert_str_eq(err.message, rows[i].message);
    }
    ck_assert_ptr_null(code_policy_load("/nonexistent/policy.json", true, NULL, &err));
    ck_assert_str_eq(err.message,
                     "SANDBOX_NET_POLICY /nonexistent/policy.json: cannot be read: No such file or directory");
    ck_assert_ptr_null(code_policy_load("/", true, NULL, &err));
    ck_assert_ptr_null(code_policy_load("/dev/zero", true, NULL, &err));
    ck_assert_str_eq(err.message, "SANDBOX_NET_POLICY /dev/zero: is larger than 262144 bytes");
}
END_TEST

static char *headers_text(const char *json, struct code_header_rules rules, enum code_net_refusal *refusal)
{
    json_t *object = json == NULL ? NULL : json_loads(json, JSON_ALLOW_NUL, NULL);
    struct curl_slist *list;
    static char text[4096];
    size_t len = 0;

    ck_assert(json == NULL || object != NULL);
    *refusal = code_headers_build(object, rules, &list);
    text[0] = '\0';
    for (const struct curl_slist *l = list; l != NULL; l = l->next)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s|", l->data);
    curl_slist_free_all(list);
    json_decref(object);
    return text;
}

START_TEST(test_headers)
{
    static const struct {
        const char *json;
        struct code_header_rules rules;
        enum code_net_refusal refusal;
        const char *text;
    } rows[] = {
        {NULL, {0}, N, "Expect:|Content-Type:|"},
        {NULL, {.with_body = true}, N, "Expect:|Content-Type: application/json|"},
        {"{\"X-A\":\"b\",\"n\":5,\"t\":true,\"e\":\"\",\"z\":null}",
         {0},
         N,
         "X-A: b|n: 5|t: true|e;|Expect:|Content-Type:|"},
        {"{\"content-type\":\"text/plain\"}", {.with_body = true}, N, "content-type: text/plain|Expect:|"},
        {"{\"Host\":\"x\",\"hOST\":\"y\",\"Connection\":\"close\",\"Content-Length\":\"5\",\"Transfer-Encoding\":"
         "\"chunked\","
         "\"Proxy-Authorization\":\"x\",\"proxy-connection\":\"x\",\"Expect\":\"100-continue\",\"TE\":\"trailers\","
         "\"Trailer\":\"x\",\"Upgrade\":\"h2c\",\"HTTP2-Settings\":\"x\",\"Keep-Alive\":\"x\",\"A\":\"1\"}",
         {0},
         N,
         "A: 1|Expect:|Content-Type:|"},
        {"{\"Authorization\":\"x\",\"cookie\":\"y\",\"Content-Type\":\"a/b\",\"A\":\"1\"}",
         {.foreign = true, .bare = true, .with_body = true},
         N,
         "A: 1|Expect:|Content-Type:|"},
        {"{\"A\":\"x\\r\\nHost: evil\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A\":\"x\\ny\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A\":\"x\\u0000y\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A\\r\\nB\":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A B\":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"Host \":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"Content-Length:\":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"\":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"\\u00e9\":\"x\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A\":[\"x\"]}", {0}, CODE_REFUSED_HEADER, ""},
        {"{\"A\":\"\\u007f\"}", {0}, CODE_REFUSED_HEADER, ""},
        {"[]", {0}, CODE_REFUSED_HEADER, ""},
    };
    enum code_net_refusal refusal;
    json_t *many = json_object(), *large = json_object();
    char name[32], *value = malloc(CODE_HEADER_BYTES_MAX + 1);
    struct curl_slist *list;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *text = headers_text(rows[i].json, rows[i].rules, &refusal);

        ck_assert_msg(refusal == rows[i].refusal, "%s: %s", rows[i].json, code_net_refusal_name(refusal));
        ck_assert_str_eq(text, rows[i].text);
    }
    for (int i = 0; i < CODE_HEADERS_MAX; i++) {
        snprintf(name, sizeof(name), "x-%d", i);
        json_object_set_new(many, name, json_string("v"));
    }
    ck_assert_int_eq(code_headers_build(many, (struct code_header_rules){0}, &list), N);
    curl_slist_free_all(list);
    json_object_set_new(many, "one-more", json_string("v"));
    ck_assert_int_eq(code_headers_build(many, (struct code_header_rules){0}, &list), CODE_REFUSED_HEADER_COUNT);
    memset(value, 'v', CODE_HEADER_BYTES_MAX);
    value[CODE_HEADER_BYTES_MAX] = '\0';
    json_object_set_new(large, "a", json_string(value));
    ck_assert_int_eq(code_headers_build(large, (struct code_header_rules){0}, &list), CODE_REFUSED_HEADER_BYTES);
    ck_assert_ptr_null(list);
    json_decref(many);
    json_decref(large);
    free(value);
}
END_TEST

START_TEST(test_methods)
{
    ck_assert(code_method_allowed("GET") && code_method_allowed("PATCH") && code_method_allowed("PROPFIND"));
    ck_assert(!code_method_allowed("CONNECT") && !code_method_allowed("TRACE") && !code_method_allowed("") &&
              !code_method_allowed("get") && !code_method_allowed("GET /\r\n") && !code_method_allowed("G T") &&
              !code_method_allowed("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
}
END_TEST

SK_CHECK_MAIN("code policy", test_urls, test_messages, test_canonical, test_redirect_targets, test_bounds,
              test_resolved_addresses, test_own_addresses, test_file_rules, test_file_faults, test_headers,
              test_methods)
