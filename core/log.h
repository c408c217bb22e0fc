/* Log sink: the library hands its notes to whoever listens; it never writes to a stream itself.
 * Threads: log_* may be called from any thread; the sink must be safe to call concurrently (the
 * default sink drops everything). */
#ifndef TTV_CORE_LOG_H
#define TTV_CORE_LOG_H

typedef enum LogLevel { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } LogLevel;

typedef void (*LogSink)(void *user, LogLevel level, const char *message);

/* Installs a sink (NULL: drop everything). Call before threads start. */
void log_set_sink(LogSink sink, void *user);

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
