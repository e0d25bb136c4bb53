// SPDX-License-Identifier: Apache-2.0
// userfaultfd.hpp - missing pages as the kernel reports them on a file.
//
// Model    A thread that touches a watched page without memory sleeps in the kernel, inside a system call
//          too, until wake() lets it look again or poison() turns its access into SIGBUS (EFAULT in a
//          system call). Mapping something else over a page ends its watch.
// Threads  Any, once open. Nothing here allocates.
// Failure  open() is false where the kernel or a sandbox refuses, or cannot poison (before 6.6): there
//          would be no way to let go of a thread without a race against whoever maps the page.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>

namespace xmm::detail {

// From Linux 6.6's header, which older distributions lack.
struct uffd_poison_request {
    std::uint64_t begin;
    std::uint64_t bytes;
    std::uint64_t mode;
    std::int64_t updated;
};
inline constexpr std::uint64_t uffd_has_poison = std::uint64_t{1} << 14;
inline constexpr std::uint64_t uffd_has_exact_address = std::uint64_t{1} << 11;
inline constexpr std::uint64_t uffd_has_thread_id = std::uint64_t{1} << 8;
inline constexpr unsigned long uffd_poison_call = _IOWR(0xAA, 0x08, uffd_poison_request);
inline constexpr unsigned long uffd_new_call = _IO(0xAA, 0x00);

struct page_event {
    address at = 0;
    access wanted = access::none;
    ::pid_t thread = 0;
};

class userfaultfd {
public:
    userfaultfd() = default;
    userfaultfd(const userfaultfd&) = delete;
    userfaultfd& operator=(const userfaultfd&) = delete;

    // Faults of system calls included, or not at all: what cannot take those has no use for us.
    [[nodiscard]] bool open() noexcept {
        errno_keeper keep;
        file_ = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
        if (file_ < 0) {
            const int device = ::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
            if (device >= 0) {
                file_ = ::ioctl(device, uffd_new_call, O_CLOEXEC);
                ::close(device);
            }
        }
        uffdio_api api{};
        api.api = UFFD_API;
        api.features = uffd_has_poison | uffd_has_exact_address | uffd_has_thread_id;
        if (file_ >= 0 && ::ioctl(file_, UFFDIO_API, &api) != 0) {
            close();
        }
        return is_open();
    }
    void close() noexcept {
        if (file_ >= 0) {
            ::close(file_);
        }
        file_ = -1;
    }
    [[nodiscard]] bool is_open() const noexcept { return file_ >= 0; }

    // The next fault; waits for it.
    [[nodiscard]] page_event read() noexcept {
        for (;;) {
            uffd_msg message{};
            const ssize_t got = ::read(file_, &message, sizeof message);
            if (got == static_cast<ssize_t>(sizeof message) &&
                message.event == UFFD_EVENT_PAGEFAULT) {
                const bool is_write =
                    (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0;
                return {static_cast<address>(message.arg.pagefault.address),
                        is_write ? access::write : access::read,
                        static_cast<::pid_t>(message.arg.pagefault.feat.ptid)};
            }
            if (got < 0 && errno != EINTR && errno != EAGAIN) {
                ::pause();  // the file is gone: nobody can be waiting on it
            }
        }
    }

    // Reports touches of the range, an anonymous mapping, from now on.
    [[nodiscard]] bool watch(va_range range) noexcept {
        uffdio_register request{};
        request.range = {range.begin, range.bytes};
        request.mode = UFFDIO_REGISTER_MODE_MISSING;
        return ::ioctl(file_, UFFDIO_REGISTER, &request) == 0;
    }

    // Threads that wait for this OS page look again.
    void wake(address at) noexcept {
        uffdio_range page{align_down(at, os_page_bytes()), os_page_bytes()};
        ::ioctl(file_, UFFDIO_WAKE, &page);
    }

    // If the OS page is still watched and missing, its touches fail from now on, until something else
    // is mapped there. Threads that wait look again in any case.
    void poison(address at) noexcept {
        // relaxed: before the kernel is asked, so before any SIGBUS that comes of it.
        poisons_.fetch_add(1, std::memory_order_relaxed);
        uffd_poison_request page{align_down(at, os_page_bytes()), os_page_bytes(), 0, 0};
        while (::ioctl(file_, uffd_poison_call, &page) != 0 && errno == EAGAIN) {
        }
        wake(at);
    }

    // How many there were.
    [[nodiscard]] std::uint32_t poisons() const noexcept {
        return poisons_.load(std::memory_order_relaxed);  // relaxed: as above
    }

private:
    int file_ = -1;
    std::atomic<std::uint32_t> poisons_{0};
};

}  // namespace xmm::detail
