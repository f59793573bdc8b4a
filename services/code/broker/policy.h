/* SPDX-License-Identifier: Apache-2.0
 *
 * What a task may ask the broker for (contract/code.md §5): the one URL parser (libcurl's), names, ports and addresses
 * that are never asked, the operator's policy file, and the headers that may be sent. Default-deny: what cannot be
 * judged is refused. It judges and does nothing else: resolving and sending are transfer.h's.
 *
 * A policy never changes once it is made: any thread may read it. Nothing here blocks, but for reading the file. */
#ifndef SK_CODE_BROKER_POLICY_H
#define SK_CODE_BROKER_POLICY_H

#include "common/base/error.h"

#include <curl/curl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define CODE_URL_MAX          32768 /* bytes of a request's URL */
#define CODE_HOST_SIZE        256
#define CODE_POLICY_FILE_MAX  (256 * 1024)
#define CODE_POLICY_RULES_MAX 1000
#define CODE_POLICY_ITEMS_MAX 1000 /* patterns of one list */
#define CODE_HEADERS_MAX      64
#define CODE_HEADER_BYTES_MAX 32768 /* names and values of one request */
#define CODE_METHOD_MAX       32

enum code_net_refusal {
    CODE_REFUSED_NOT = 0,
    CODE_REFUSED_URL,      /* not a URL, or one that two parsers could read in two ways */
    CODE_REFUSED_PROTOCOL, /* neither http nor https */
    CODE_REFUSED_USER,     /* user name or password */
    CODE_REFUSED_PORT,     /* port of another protocol */
    CODE_REFUSED_PRIVATE,  /* name or address inside */
    CODE_REFUSED_POLICY,   /* the policy file's */
    CODE_REFUSED_METHOD,
    CODE_REFUSED_HEADER,       /* cannot be sent */
    CODE_REFUSED_HEADER_COUNT, /* CODE_HEADERS_MAX */
    CODE_REFUSED_HEADER_BYTES, /* CODE_HEADER_BYTES_MAX */
    CODE_REFUSED_MEMORY,
    CODE_REFUSAL_COUNT
};
/* What the task is told: upstream's text where it has one. Static. */
const char *code_net_refusal_message(enum code_net_refusal refusal);
/* One word for the audit line: "url", "protocol", … Static. */
const char *code_net_refusal_name(enum code_net_refusal refusal);

enum code_address {
    CODE_ADDRESS_PUBLIC,
    CODE_ADDRESS_PRIVATE, /* RFC 1918 and fc00::/7: open with CHECK_INTERNAL_IP=false, or to a rule that names the host
                           */
    CODE_ADDRESS_NEVER,   /* loopback, link-local, metadata and everything else that is not a peer on the internet */
};
/* Of the address alone; a family other than IPv4 and IPv6 is NEVER. Thread-safe. */
enum code_address code_address_class(const struct sockaddr *address);
#define CODE_OWN_ADDRESSES_MAX 1024 /* public ones of the machine; with more, no request to an address is allowed */
#define CODE_OWN_ADDRESSES_MS  5000 /* how old the list of them may be */
/* Whether a public address is one of this machine's interfaces; true also when that cannot be told. Loop thread; reads
 * the interfaces now and then, which blocks for some microseconds. */
bool code_address_is_own(const struct sockaddr *address);

struct code_policy_options {
    const char *text; /* content of SANDBOX_NET_POLICY's file, NULL = no file: everything public is allowed */
    size_t length;
    bool check_internal;  /* CHECK_INTERNAL_IP */
    const char *own_host; /* the machine's name, which is refused; NULL = none */
};
struct code_policy;
/* NULL with err (invalid_request): what is wrong with the file and where, "rules[2].allow[0]: …". Copies everything. */
SK_MUST_USE struct code_policy *code_policy_new(const struct code_policy_options *options, struct sk_error *err);
/* Reads the file first; path NULL or "" = none. Blocks on the file. */
SK_MUST_USE struct code_policy *code_policy_load(const char *path, bool check_internal, const char *own_host,
                                                 struct sk_error *err);
void code_policy_free(struct code_policy *policy); /* NULL is allowed */

/* Where one request goes. */
struct code_target {
    CURLU *url; /* the result of the one parse: what the transfer is given; host in its canonical form */
    bool tls;
    int port;
    char host[CODE_HOST_SIZE]; /* lower case, ASCII, no trailing dot; an IPv6 address without brackets */
    bool literal;              /* the host is this address */
    struct sockaddr_storage address;
    bool internal;   /* private addresses are open to it */
    size_t rules;    /* rules of the file that had a say: their denied addresses are checked too */
    const char *why; /* of a refusal by name, for the audit line; static */
};

/* Takes `text` apart, relative to `base` when that is not NULL (the URL of a redirect). Only syntax, scheme, user, not
 * who is allowed what: code_target_judge. On a refusal the target holds nothing. The target must be ended with
 * code_target_fini; a zeroed one may be, too. */
SK_MUST_USE enum code_net_refusal code_target_parse(struct code_target *target, const char *text, size_t length,
                                                    const CURLU *base);
/* Whether a task of this queueId (NULL = none) may go there: port, name, rules, and the address when the host is one. A
 * host that is a name needs code_target_address for every address it resolves to. Fills internal and rules. */
SK_MUST_USE enum code_net_refusal code_target_judge(struct code_target *target, const struct code_policy *policy,
                                                    const char *queue_id);
SK_MUST_USE enum code_net_refusal code_target_address(const struct code_target *target,
                                                      const struct code_policy *policy, const char *queue_id,
                                                      const struct sockaddr *address);
void code_target_fini(struct code_target *target);

/* A method to send: a token in upper case, and none that makes a tunnel or an echo. */
bool code_method_allowed(const char *method);
/* Builds the request's headers from an object of texts (numbers and booleans count as text, null is left out; NULL = no
 * headers). Host and hop-by-hop ones are left out silently. `with_body` adds Content-Type: application/json where there
 * is none; `foreign` leaves out what is meant for another origin (after a redirect): Authorization and Cookie; `bare`
 * leaves out what describes a body. *out is the caller's (curl_slist_free_all), NULL on a refusal. */
struct code_header_rules {
    bool with_body, foreign, bare;
};
SK_MUST_USE enum code_net_refusal code_headers_build(const json_t *headers, struct code_header_rules rules,
                                                     struct curl_slist **out);

/* Private: shared by the files of this folder. */
bool code_policy_checks_internal(const struct code_policy *policy);
bool code_policy_is_own_host(const struct code_policy *policy, const char *host);
enum code_ruling_verdict { CODE_VERDICT_DEFAULT, CODE_VERDICT_ALLOW, CODE_VERDICT_DENY };
struct code_ruling {
    bool allowed;
    bool by_name, by_port; /* the pattern that allowed it names exactly this host, exactly this port */
    size_t rules;          /* looked at */
};
struct code_ruling code_policy_rule(const struct code_policy *policy, const char *queue_id, const char *host, int port);
bool code_policy_denies_address(const struct code_policy *policy, const char *queue_id, size_t rules, int port,
                                const struct sockaddr *address);

#endif
