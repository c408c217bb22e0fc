#include "core/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

static LogSink current_sink;
static void *current_user;

void log_set_sink(LogSink sink, void *user) {
    current_sink = sink;
    current_user = user;
}

static void log_line(LogLevel level, const char *format, va_list args) {
    if (current_sink == NULL) return;
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    current_sink(current_user, level, text);
}

void log_debug(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(LOG_DEBUG, format, args);
    va_end(args);
}

void log_info(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(LOG_INFO, format, args);
    va_end(args);
}

void log_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(LOG_WARN, format, args);
    va_end(args);
}

void log_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(LOG_ERROR, format, args);
    va_end(args);
}
