/* SPDX-License-Identifier: Apache-2.0
 *
 * Subjects, streams, consumers and headers of the public NATS contract (contract/messaging.md), in one place. The first
 * token is configurable (SANDKEEP_SUBJECT_PREFIX); formats take it as their first argument. */
#ifndef SK_PROTO_SUBJECTS_H
#define SK_PROTO_SUBJECTS_H

#define SK_SUBJECT_PREFIX_DEFAULT "sandbox"

#define SK_STREAM_COMMANDS "SANDBOX_COMMANDS"
#define SK_STREAM_EVENTS   "SANDBOX_EVENTS"
#define SK_STREAM_DEAD     "SANDBOX_DEAD"

#define SK_CONSUMER_LIFECYCLE "lifecycle"
#define SK_CONSUMER_SOURCE    "source"
#define SK_CONSUMER_ARCHIVE   "archive"
#define SK_CONSUMER_MIGRATION "migration"

#define SK_SUBJECT_COMMANDS_FMT          "%s.cmd.>"
#define SK_SUBJECT_COMMAND_LIFECYCLE_FMT "%s.cmd.lifecycle.%s.%s" /* op, sandboxId */
#define SK_SUBJECT_FILTER_LIFECYCLE_FMT  "%s.cmd.lifecycle.>"
#define SK_SUBJECT_FILTER_SOURCE_FMT     "%s.cmd.source.>"
#define SK_SUBJECT_FILTER_ARCHIVE_FMT    "%s.cmd.archive.>"
#define SK_SUBJECT_FILTER_MIGRATION_FMT  "%s.cmd.migration.>"
#define SK_SUBJECT_EVENTS_FMT            "%s.evt.>"
#define SK_SUBJECT_EVENT_FMT             "%s.evt.%s.%s" /* sandboxId, type */
#define SK_SUBJECT_EVENT_UNKNOWN         "unknown"      /* sandboxId token of events about unusable ids */
#define SK_SUBJECT_DEAD_FMT              "%s.dead.%s"   /* rest of the command's subject */
#define SK_SUBJECT_RPC_FMT               "%s.rpc.%s.%s" /* service, method */
#define SK_SUBJECT_WAKE_FMT              "%s.rpc.lifecycle.wake"

#define SK_HEADER_MESSAGE_ID  "Nats-Msg-Id"
#define SK_HEADER_REPLY_TO    "Sandbox-Reply-To"
#define SK_HEADER_PROGRESS    "Sandbox-Progress"
#define SK_HEADER_REASON      "Sandbox-Reason"
#define SK_HEADER_DELIVERIES  "Sandbox-Deliveries"
#define SK_HEADER_TRACEPARENT "traceparent"
#define SK_HEADER_TRACESTATE  "tracestate"
#define SK_HEADER_CE_ID       "ce-id"
#define SK_HEADER_CE_TYPE     "ce-type"
#define SK_HEADER_CE_SOURCE   "ce-source"
#define SK_HEADER_CE_SUBJECT  "ce-subject"
#define SK_HEADER_CE_VERSION  "ce-specversion"
#define SK_HEADER_CE_TIME     "ce-time"
#define SK_CE_TYPE_FMT        "dev.sandkeep.%s.v1"
#define SK_CE_SOURCE_FMT      "/sandkeep/%s"

#define SK_ERROR_TYPE_URI "https://sandkeep.dev/errors/"

#endif
